package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud/host"
)

func (k *kind) spec(b *host.Boot) spec {
	s := spec{
		ID:          b.ID,
		Dir:         b.Dir,
		RootDir:     k.cfg.RootDir,
		Init:        k.cfg.Init,
		Address:     b.Address,
		Gateway:     b.Gateway,
		AddressIPv6: b.AddressIPv6,
		GatewayIPv6: b.GatewayIPv6,
		Cores:       cores(b.Type),
		MemoryBytes: b.Type.MemoryBytes,
		PureV2:      k.cgroups.PureV2(),
		GPUs:        standIns(b.Type),
	}
	for _, h := range k.cgroups.Hierarchies {
		g := machineGroup{Host: k.cgroups.Dir(h, b.ID), Name: filepath.Base(h.Mount)}
		for _, name := range h.Controllers {
			// Where one hierarchy holds several controllers, each can also be
			// found under its own name.
			if name != g.Name && !strings.HasPrefix(name, "name=") {
				g.Links = append(g.Links, name)
			}
		}
		s.Cgroups = append(s.Cgroups, g)
	}
	return s
}

// populate fills the machine's folder: what its root adds to RootDir, and its
// disk.
func (k *kind) populate(ctx context.Context, b *host.Boot) error {
	dir, diskBytes := b.Dir, b.Type.DiskBytes
	if k.mkfs != "" && diskBytes > 0 {
		if err := k.makeDisk(ctx, dir, diskBytes); err != nil {
			return fmt.Errorf("make a disk of %d bytes: %w", diskBytes, err)
		}
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{"root", 0o755}, {"work", 0o755}, {"upper", 0o755}, {"upper/etc", 0o755}, {"upper/tmp", 0o777 | os.ModeSticky},
		{"upper/var", 0o755}, {"upper/var/lib", 0o755}, {"upper/var/lib/cloud", 0o755}, {"upper/var/lib/cloud/seed", 0o700},
		{"disk", 0o755},
	} {
		p := filepath.Join(dir, d.path)
		if err := os.Mkdir(p, d.mode); err != nil {
			return err
		}
		if err := os.Chmod(p, d.mode); err != nil { // whatever the umask
			return err
		}
	}
	// Unique to the machine, and the same as long as it lives.
	machineID := sha256.Sum256([]byte(b.ID))
	resolv := "# No nameserver: a look-up fails at once.\n"
	if len(k.cfg.Nameservers) > 0 {
		resolv = ""
		for _, ns := range k.cfg.Nameservers {
			resolv += "nameserver " + ns.String() + "\n"
		}
	}
	for _, f := range []struct {
		path, content string
		mode          os.FileMode
	}{
		{"upper/etc/hostname", b.ID + "\n", 0o644},
		{"upper/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n" + b.Address.Addr().String() + " " + b.ID + "\n", 0o644},
		{"upper/etc/resolv.conf", resolv, 0o644},
		{"upper/etc/machine-id", hex.EncodeToString(machineID[:16]) + "\n", 0o444},
		{"upper/var/lib/cloud/seed/user-data", string(b.UserData), 0o400},
	} {
		p := filepath.Join(dir, f.path)
		if err := os.WriteFile(p, []byte(f.content), f.mode); err != nil {
			return err
		}
		if err := os.Chmod(p, f.mode); err != nil {
			return err
		}
	}
	if standIns(b.Type) > 0 {
		return makeDriver(filepath.Join(dir, "upper"))
	}
	return nil
}

// refill makes the folder of a machine that was stopped ready for another boot.
func (k *kind) refill(_ context.Context, b *host.Boot) error {
	// The overlay's scratch folder has the mark of an overlay that was not
	// flushed, with which the kernel refuses to mount it again. All that the
	// machine wrote is there nevertheless, unless the host crashed.
	work := filepath.Join(b.Dir, "work")
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	return os.Mkdir(work, 0o755)
}

// launching is a machine's first process while it waits to be released.
type launching struct {
	pid    int
	handle *host.Handle
	spec   *os.File
	status *os.File
}

// spawn starts the process in its namespaces. It does nothing until release.
func (k *kind) spawn(consolePath string) (*launching, error) {
	console, err := os.OpenFile(consolePath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open console: %w", err)
	}
	defer console.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	specR, specW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer specR.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		specW.Close()
		return nil, err
	}
	defer statusW.Close()
	argv := append([]string{"kip"}, k.cfg.LauncherArgs...)
	p, err := os.StartProcess(k.cfg.LauncherPath, argv, &os.ProcAttr{
		Dir: "/",
		// One thread of Go code, no collection: it lives for milliseconds.
		Env:   []string{"GOMAXPROCS=1", "GOGC=off"},
		Files: []*os.File{null, console, console, specFD: specR, statusFD: statusW},
		Sys: &syscall.SysProcAttr{
			Setsid: true,
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
				unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		},
	})
	if err != nil {
		specW.Close()
		statusR.Close()
		return nil, fmt.Errorf("start %s in new namespaces: %w", k.cfg.LauncherPath, err)
	}
	l := &launching{pid: p.Pid, spec: specW, status: statusR}
	// Waiting is done by our own handle.
	return l, p.Release()
}

// release tells the process to become the machine and waits until it has.
func (l *launching) release(ctx context.Context, s spec) error {
	stop := context.AfterFunc(ctx, func() { _ = l.status.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	writeErr := json.NewEncoder(l.spec).Encode(s)
	l.spec.Close()
	// Nothing but the end means that init has been executed.
	said, err := io.ReadAll(l.status)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case len(said) > 0:
		return errors.New(string(said))
	case err != nil:
		return fmt.Errorf("read how the machine starts: %w", err)
	case writeErr != nil:
		return fmt.Errorf("tell the machine what to be: %w", writeErr)
	}
	return nil
}

// verdict is what a process that died early has said, for an error message.
func (l *launching) verdict() string {
	l.spec.Close()
	said, _ := io.ReadAll(l.status)
	if len(said) == 0 {
		return ""
	}
	return ": " + string(said)
}

func (l *launching) closePipes() {
	l.spec.Close()
	l.status.Close()
}

// abandon ends and reaps the process. It is our child and not reaped yet, so
// the PID is still its own.
func (l *launching) abandon() {
	_ = unix.Kill(l.pid, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(l.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if l.handle != nil {
		l.handle.Close()
	}
}
