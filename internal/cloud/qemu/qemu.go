package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/host/cgroups"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

var (
	_ cloud.Cloud       = (*Cloud)(nil)
	_ cloud.Stopper     = (*Cloud)(nil)
	_ cloud.Interrupter = (*Cloud)(nil)
	_ cloud.Disks       = (*Cloud)(nil)
	_ host.Kind         = (*kind)(nil)
	_ host.Shutter      = (*kind)(nil)
)

// Cloud launches and ends virtual machines on this host. One process at a time has the
// Cloud of a state folder.
type Cloud struct{ *host.Cloud }

// kind makes virtual machines.
type kind struct {
	cfg         Config
	accelerator string
	cgroups     cgroups.Machines
	image       image
}

// New opens the cloud in cfg.StateDir, as host.New does, and says how machines run.
func New(ctx context.Context, cfg Config) (*Cloud, error) {
	k, err := prepare(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("qemu cloud: %w", err)
	}
	c, err := host.New(k.cfg.Config, k)
	if err != nil {
		return nil, err
	}
	if err := prune(k.cfg.StateDir, k.machines(), k.image.dir); err != nil {
		k.cfg.Log.Warn("cannot remove images that no machine boots", "err", err)
	}
	return &Cloud{c}, nil
}

// prepare returns a kind that can make machines.
func prepare(ctx context.Context, cfg Config) (*kind, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := host.MustBeRoot(); err != nil {
		return nil, err
	}
	if err := checkHost(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make stateDir: %w", err)
	}
	k, err := look(cfg)
	if err != nil {
		return nil, err
	}
	if k.image, err = install(ctx, cfg.Image, cfg.StateDir); err != nil {
		return nil, err
	}
	k.image.tellVersion(cfg.Log, cfg.Version)
	why, kvm := error(nil), trials{tryProcessor, tryKernel}
	if k.accelerator, why = kvm.accelerator(ctx, cfg.Accelerator, vm.Program, cfg.StateDir, k.image); why != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if cfg.Accelerator == vm.KVM {
			return nil, fmt.Errorf("accelerator %s: %w", vm.KVM, why)
		}
		cfg.Log.Warn("machines are emulated, which is some ten times slower than KVM", "accelerator", k.accelerator, "why", why)
	} else {
		cfg.Log.Info("machines are virtualized", "accelerator", k.accelerator)
	}
	k.cfg.Catalogue = possible(cfg.Catalogue, host.CPUs(), k.accelerator)
	if len(k.cfg.Catalogue) == 0 {
		return nil, fmt.Errorf("none of %d instance types is one for a virtual machine of this host, which has %d CPUs", len(cfg.Catalogue),
			host.CPUs())
	}
	return k, nil
}

// Destroy ends all machines of cfg.StateDir and removes them, as host.Destroy does.
func Destroy(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("destroy qemu cloud: %w", err)
	}
	k, err := look(cfg)
	if err != nil {
		return fmt.Errorf("destroy qemu cloud: %w", err)
	}
	return host.Destroy(ctx, cfg.Config, k)
}

// Leftovers names everything on this host that belongs to the cloud in cfg.StateDir, as
// host.Leftovers does.
func Leftovers(ctx context.Context, cfg Config) ([]string, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	k, err := look(cfg)
	if err != nil {
		return nil, err
	}
	return host.Leftovers(ctx, cfg.Config, k)
}

// look returns a kind that can find and end machines, and make none. The configuration has
// its defaults.
func look(cfg Config) (*kind, error) {
	groups, err := cgroups.Of(cfg.Group)
	return &kind{cfg: cfg, cgroups: groups}, err
}

// Name is the key in provider.yaml.
func (k *kind) Name() string { return "qemu" }

// Kill ends a machine's QEMU.
func (k *kind) Kill(id string, p *host.Handle) error {
	if err := p.Kill(); err != nil {
		return err
	}
	k.cgroups.Thaw(id)
	return nil
}

// Shut presses the machine's power button.
func (k *kind) Shut(ctx context.Context, _ string, p host.Process) error {
	return withMonitor(ctx, p, func(m *vm.Monitor) error { return m.Do(ctx, "system_powerdown", nil, nil) })
}

// ShutLimit is how long a machine has to end by itself.
func (k *kind) ShutLimit() time.Duration { return k.cfg.ShutLimit }

// clearPoll is how often is looked whether a process has ended.
const clearPoll = 5 * time.Millisecond

// Clear ends what runs in the machine's folder and in its cgroups, such as a QEMU whose
// process was never recorded, and removes the cgroups.
func (k *kind) Clear(ctx context.Context, id string) error {
	for {
		running, err := running(k.machines())
		if err != nil {
			return err
		}
		if len(running[id]) == 0 {
			return k.cgroups.Remove(ctx, k.cfg.Clock, id)
		}
		for _, pid := range running[id] {
			// Read a moment ago. PIDs are given out in turn, so this one does not come to
			// mean another process before they have all been through.
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("end process %d of %s: %w", pid, id, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: processes %v of %s have not ended", ctx.Err(), running[id], id)
		case <-k.cfg.Clock.After(clearPoll):
		}
	}
}

// ClearAll removes the images, and the cgroup above the machines'.
func (k *kind) ClearAll() error {
	return errors.Join(os.RemoveAll(filepath.Join(k.cfg.StateDir, imagesFolder)), k.cgroups.RemoveRoot())
}

// Traces are the IDs of machines of which a process runs, or a cgroup is there.
func (k *kind) Traces() []string {
	ids := k.cgroups.IDs()
	all, err := running(k.machines())
	if err != nil {
		k.cfg.Log.Error("cannot look for machines without a folder", "err", err)
	}
	for id := range all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Inspect tells of the cgroups, and which processes run.
func (k *kind) Inspect() (found []string, pids []int, err error) {
	found, pids = k.cgroups.Inspect()
	all, err := running(k.machines())
	for _, of := range all {
		pids = append(pids, of...)
	}
	return found, pids, err
}

// machines is the folder of the machines' folders.
func (k *kind) machines() string { return filepath.Dir(k.cfg.MachineDir("any")) }
