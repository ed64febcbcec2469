package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/agentlimit"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/keyed"
)

// lettingGo is how many cells are waited for at the same time that let go of their
// volumes: half of what may be asked slowly, since others hang. lettingOfOne is how many of one namespace.
const lettingGo, lettingOfOne = 128, 96

// freeingVolumes has cells let go of the volumes of their pods, before their instances end.
type freeingVolumes struct {
	loop        *loop
	calls       *pipe.Pipe
	agents      *asking
	connections *connections
	events      *reporter
	places      *keyed.Places[string] // of cells that let go of volumes, by namespace
}

// has reports whether a cell has volumes that it is to let go of.
func (s *freeingVolumes) has(cell *Cell) bool { return len(cell.Plugins) > 0 || s.hasDisks(cell) }

// hasDisks reports whether a cell has disks that can be detached.
func (s *freeingVolumes) hasDisks(cell *Cell) bool { return len(cell.Disks) > 0 && hasDisks(s.calls) }

// errNotFreed: a volume is free only when the instance has ended.
var errNotFreed = errors.New("its volumes are not free before it ends")

// free has a cell let go of its pod's volumes. It returns errNotFreed, or an error when ctx has ended.
func (s *freeingVolumes) free(ctx context.Context, e *entry) error {
	var left error
	if len(e.cell().Plugins) > 0 {
		err := s.unplug(ctx, e)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			left = errNotFreed
			s.events.report(e.cell(), events.NewVolumeNotUnmounted(e.id, driverNames(e.cell().Plugins), err))
		}
	}
	if s.hasDisks(e.cell()) {
		err := s.detach(ctx, e)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			left = errNotFreed
			s.loop.log.Warn("disks are freed with the instance, since they could not be before",
				"cell", e.id, "pod", e.cell().Pod.String(), "err", err)
		}
	}
	return left
}

// askUntilFree asks an agent until its cell has let go of volumes, so that all is written. Its
// time runs from when it has its place: what many write at the same time takes each longer.
func (s *freeingVolumes) askUntilFree(ctx context.Context, e *entry, poll time.Duration, ask func(context.Context) error) error {
	leave, err := e.waitForPlace(ctx, s.places)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := s.connections.reach(ctx, e); err != nil {
		return err
	}
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		again := errors.Is(err, agentapi.ErrNotYet) || errors.Is(err, agentlimit.ErrSlow)
		if !again || !patient(e) || !s.loop.sleep(ctx, s.loop.random.Jittered(poll)) {
			return err
		}
	}
}

// unplug waits until the kubelet of a cell that is being drained has let go of all
// CSI volumes: what a driver has not written yet would be lost with the machine.
func (s *freeingVolumes) unplug(ctx context.Context, e *entry) error {
	return s.askUntilFree(ctx, e, pluginPoll, func(ctx context.Context) error { return s.agents.putPlugins(ctx, e, e.session(), nil) })
}

// detach takes the disks from a cell that is being drained. The agent unmounts
// them, so that all is written. They are then free for another cell before the
// instance is gone. A disk that cannot be unmounted is never torn off: the end of
// the instance frees the disk as surely.
func (s *freeingVolumes) detach(ctx context.Context, e *entry) error {
	ask := func(ctx context.Context) error { return s.agents.putDisks(ctx, e, e.session(), nil) }
	if err := s.askUntilFree(ctx, e, diskPoll, ask); err != nil {
		return fmt.Errorf("unmount %s: %w", volumeNames(e.cell().Disks), err)
	}
	// What the agent took is not taken off the time for which the call may wait.
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	for _, d := range e.cell().Disks {
		if err := s.calls.Optional().Disks.DetachDisk(ctx, d.ID, e.cell().Instance.ID); err != nil {
			return fmt.Errorf("detach volume %s: %w", d.Volume, err)
		}
	}
	return nil
}
