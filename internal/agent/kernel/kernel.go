package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/sysctls"
)

// Options of a Kernel. All are required.
type Options struct {
	// Root is the root directory of the machine: "/".
	Root string
	// StateDir keeps what was asked for, RunDir what was done since the machine was started.
	StateDir, RunDir string
	// Shared reports whether other machines run on the same kernel.
	Shared bool
	// CgroupV2 reports whether the controllers are in the unified hierarchy.
	CgroupV2 bool
	// SwapFile is the file to swap to, below Root.
	SwapFile string
	// Load loads a module by its name.
	Load func(ctx context.Context, name string) error
}

// Kernel is that of one machine.
type Kernel struct {
	o       Options
	setFile func(file, text string) error // of the kernel's own files
	swapOn  func(path string) error
	mu      sync.Mutex
}

// New returns the kernel of a machine.
func New(o Options) *Kernel { return &Kernel{o: o, setFile: setFile, swapOn: swapOn} }

// ErrRefused says that the machine refuses what is asked of its kernel, and always will.
var ErrRefused = errors.New("refused")

// refusedError is an ErrRefused with a sentence of its own.
type refusedError struct{ why string }

func (e *refusedError) Error() string        { return e.why }
func (e *refusedError) Is(target error) bool { return target == ErrRefused }

func refuse(format string, args ...any) error { return &refusedError{fmt.Sprintf(format, args...)} }

const (
	// These are more than Kip sends.
	maxModules, maxSysctls, maxValue = 64, 256, 4096
	// fileName is of the settings in StateDir, and in RunDir.
	fileName = "kernel.json"
)

var moduleName = regexp.MustCompile(`^[A-Za-z0-9][-_A-Za-z0-9]{0,63}$`)

// validate returns an ErrRefused for the first name or value that cannot be one.
func validate(s agentapi.KernelSettings) error {
	if len(s.Modules) > maxModules || len(s.Sysctls) > maxSysctls {
		return refuse("%d modules and %d sysctls: want at most %d and %d", len(s.Modules), len(s.Sysctls), maxModules, maxSysctls)
	}
	for _, m := range s.Modules {
		if !moduleName.MatchString(m) {
			return refuse("load module %.100q: not the name of a module", m)
		}
	}
	for _, c := range s.Sysctls {
		switch {
		case !sysctls.IsName(c.Name):
			return refuse("set sysctl %.100q: not the name of a sysctl", c.Name)
		case len(c.Value) > maxValue || strings.ContainsAny(c.Value, "\n\x00"):
			return refuse("set sysctl %s=%.100q: not one line of at most %d bytes", c.Name, c.Value, maxValue)
		}
	}
	return nil
}

// Apply loads the modules and sets the sysctls. It returns an ErrRefused for the first that the machine refuses.
func (k *Kernel) Apply(ctx context.Context, s agentapi.KernelSettings) error {
	if err := validate(s); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.set(ctx, s); err != nil {
		return err
	}
	stored, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("store the kernel's settings: %w", err)
	}
	// In RunDir last: it says that all is done.
	for _, dir := range []string{k.o.StateDir, k.o.RunDir} {
		if err := write(filepath.Join(dir, fileName), stored); err != nil {
			return fmt.Errorf("store the kernel's settings: %w", err)
		}
	}
	return nil
}

// Restore does what was last applied once more if the machine has been started anew since.
func (k *Kernel) Restore(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	stored, err := os.ReadFile(filepath.Join(k.o.StateDir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var s agentapi.KernelSettings
	if err == nil {
		err = json.Unmarshal(stored, &s)
	}
	if err != nil {
		return fmt.Errorf("read the kernel's settings: %w", err)
	}
	done := filepath.Join(k.o.RunDir, fileName)
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	if err := k.set(ctx, s); err != nil {
		return err
	}
	return write(done, stored)
}

func (k *Kernel) set(ctx context.Context, s agentapi.KernelSettings) error {
	for _, m := range s.Modules {
		if err := k.load(ctx, m); err != nil {
			return err
		}
	}
	for _, c := range s.Sysctls {
		if err := k.write(c); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) load(ctx context.Context, name string) error {
	if k.o.Shared {
		return refuse("load module %s: this machine shares its kernel with others", name)
	}
	// It may be loaded, or built in.
	if _, err := os.Stat(filepath.Join(k.o.Root, "sys/module", strings.ReplaceAll(name, "-", "_"))); err == nil {
		return nil
	}
	err := k.o.Load(ctx, name)
	if err != nil && ctx.Err() == nil {
		return refuse("load module %s: %v", name, err)
	}
	return err
}

func (k *Kernel) write(c agentapi.Sysctl) error {
	if k.o.Shared && !sysctls.IsNamespaced(c.Name) {
		return refuse("set sysctl %s=%s: this machine shares its kernel with others, and this sysctl is not namespaced", c.Name, c.Value)
	}
	err := k.setFile(filepath.Join(k.o.Root, "proc/sys", path(c.Name)), c.Value)
	if errors.Is(err, fs.ErrNotExist) {
		return refuse("set sysctl %s=%s: the kernel has no such sysctl", c.Name, c.Value)
	}
	if err != nil {
		why := err.Error()
		if number, is := errors.AsType[unix.Errno](err); is {
			why = number.Error()
		}
		return refuse("set sysctl %s=%s: the kernel says: %s", c.Name, c.Value, why)
	}
	return nil
}

// path is that of a sysctl below /proc/sys.
func path(name string) string { return strings.NewReplacer(".", "/", "/", ".").Replace(name) }

// write replaces a file as a whole.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o600)
}
