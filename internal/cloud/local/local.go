package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/host/cgroups"
)

var (
	_ cloud.Cloud       = (*Cloud)(nil)
	_ cloud.Stopper     = (*Cloud)(nil)
	_ cloud.Interrupter = (*Cloud)(nil)
	_ cloud.Disks       = (*Cloud)(nil)
	_ host.Kind         = (*kind)(nil)
)

// Cloud launches and ends machines on this host. One process at a time has the
// Cloud of a state folder.
type Cloud struct {
	*host.Cloud
	kind *kind
}

// kind makes machines of namespaces and cgroups.
type kind struct {
	cfg     Config
	cgroups cgroups.Machines
	mkfs    string // makes disks; "" where that cannot be done
}

// New opens the cloud in cfg.StateDir, as host.New does.
func New(cfg Config) (_ *Cloud, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("local cloud: %w", err)
	}
	if cfg.RootDir, err = host.UsablePath("rootDir", cfg.RootDir); err != nil {
		return nil, fmt.Errorf("local cloud: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(cfg.RootDir, cfg.Init[0])); err != nil {
		return nil, fmt.Errorf("local cloud: rootDir %s has no %s, which is to be the machine's init: %w", cfg.RootDir, cfg.Init[0], err)
	}
	if err := checkHost(); err != nil {
		return nil, fmt.Errorf("local cloud: %w", err)
	}
	groups, err := cgroups.Of(cfg.Group)
	if err != nil {
		return nil, fmt.Errorf("local cloud: %w", err)
	}
	if err := refuseOverlay(cfg.StateDir); err != nil {
		return nil, fmt.Errorf("local cloud: %w", err)
	}
	k := &kind{cfg: cfg, cgroups: groups}
	// Before host.New, which is given the kind whole.
	if k.mkfs, err = findMkfs(); err != nil {
		cfg.Log.Warn("machines can fill the host's disk: theirs have no limit", "err", err)
	}
	c, err := host.New(cfg.Config, k)
	if err != nil {
		return nil, err
	}
	raiseLimits(cfg.Log)
	return &Cloud{Cloud: c, kind: k}, nil
}

// Destroy ends all machines of cfg.StateDir and removes them, as host.Destroy does.
func Destroy(ctx context.Context, cfg Config) error {
	k, err := look(cfg)
	if err != nil {
		return fmt.Errorf("destroy local cloud: %w", err)
	}
	return host.Destroy(ctx, k.cfg.Config, k)
}

// Leftovers names everything on this host that belongs to the cloud in
// cfg.StateDir, as host.Leftovers does.
func Leftovers(ctx context.Context, cfg Config) ([]string, error) {
	k, err := look(cfg)
	if err != nil {
		return nil, err
	}
	return host.Leftovers(ctx, k.cfg.Config, k)
}

// look returns a kind that can find and end machines, and make none.
func look(cfg Config) (*kind, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	groups, err := cgroups.Of(cfg.Group)
	return &kind{cfg: cfg, cgroups: groups}, err
}

// Name is the key in provider.yaml.
func (k *kind) Name() string { return "local" }

// Logs implements host.Kind: a machine writes to its console alone.
func (k *kind) Logs() []string { return nil }

// size is what a machine of a type is held to.
func size(t catalog.InstanceType) cgroups.Size {
	return cgroups.Size{MilliCPU: t.MilliCPU, MemoryBytes: t.MemoryBytes}
}

// Kill ends a machine by its init, with which the kernel ends all others.
func (k *kind) Kill(id string, init *host.Handle) error {
	if err := init.Kill(); err != nil {
		return err
	}
	k.cgroups.Thaw(id)
	return nil
}

// Clear removes the machine's cgroups.
func (k *kind) Clear(ctx context.Context, id string) error {
	return k.cgroups.Remove(ctx, k.cfg.Clock, id)
}

// ClearAll removes the cgroup above the machines'.
func (k *kind) ClearAll() error { return k.cgroups.RemoveRoot() }

// Traces are the names of the machines' cgroups.
func (k *kind) Traces() []string { return k.cgroups.IDs() }

// Inspect tells of the cgroups, and of what runs in them.
func (k *kind) Inspect() (found []string, pids []int, err error) {
	found, pids = k.cgroups.Inspect()
	return found, pids, nil
}

// AttachDisk makes a loop device of the disk and a node of it in the machine.
func (k *kind) AttachDisk(_ context.Context, p host.Process, d host.Disk) error {
	n, err := loop(d)
	if err != nil {
		return err
	}
	k.cfg.Reached("disk looped")
	if err := showDevice(p, d.ID, n); err != nil {
		return fmt.Errorf("show its device: %w", err)
	}
	return nil
}

// DetachDisk frees the loop device and takes the node away.
func (k *kind) DetachDisk(ctx context.Context, p host.Process, d host.Disk) error {
	if err := k.unloop(ctx, d); err != nil {
		return err
	}
	k.cfg.Reached("disk unlooped")
	if err := hideDevice(p, d.ID); err != nil {
		return fmt.Errorf("remove its device: %w", err)
	}
	return nil
}

// GrowDisk has the loop device, and one of a block volume upon it, look at the file's size.
func (k *kind) GrowDisk(_ context.Context, _ host.Process, d host.Disk, _ int64) error {
	loops, err := loopsOfDisk(d)
	if err != nil {
		return err
	}
	for _, l := range slices.Backward(loops) { // the nested ones last: their file is the other's device
		_, loop, err := host.OpenLoop(l.n, filepath.Dir(d.File), os.O_RDWR)
		if err != nil {
			return err
		}
		err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0)
		if err := errors.Join(err, loop.Close()); err != nil {
			return fmt.Errorf("have loop%d read the size of its file: %w", l.n, err)
		}
	}
	return nil
}

// Start boots a machine, or nothing of it but what is found by its ID.
func (k *kind) Start(ctx context.Context, b *host.Boot) (_ *host.Handle, err error) {
	// The process first: while its runtime comes up, the rest is made.
	p, err := k.spawn(b.Console)
	if err != nil {
		return nil, err
	}
	defer p.closePipes()
	defer func() {
		if err != nil {
			p.abandon()
		}
	}()
	k.cfg.Reached("spawned")
	fill := k.populate
	if b.Again {
		fill = k.refill
	}
	if err := fill(ctx, b); err != nil {
		return nil, fmt.Errorf("fill the machine's folder: %w", err)
	}
	k.cfg.Reached("populated")
	if err := k.cgroups.Create(b.ID, size(b.Type)); err != nil {
		return nil, err
	}
	k.cfg.Reached("limited")
	if p.handle, err = b.Identify(p.pid); errors.Is(err, host.ErrGone) {
		return nil, fmt.Errorf("%w%s", err, p.verdict())
	} else if err != nil {
		return nil, err
	}
	if err := k.cgroups.Attach(b.ID, p.pid); err != nil {
		return nil, err
	}
	k.cfg.Reached("attached")
	if err := b.Plug(p.pid); err != nil {
		return nil, err
	}
	k.cfg.Reached("plugged")
	if err := p.release(ctx, k.spec(b)); err != nil {
		return nil, err
	}
	k.cfg.Reached("released")
	return p.handle, nil
}
