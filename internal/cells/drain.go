package cells

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/agentlimit"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/watchdog"
)

// drainTimeout bounds how long Kip waits for a cell to answer before it terminates it. A
// longer wait for a machine that does not answer costs more than it saves. Logs that
// come take longer: podlogs bounds that.
const drainTimeout = 30 * time.Second

// draining saves what must outlive cells.
type draining struct {
	loop        *loop
	records     *records
	calls       *pipe.Pipe
	agents      *asking
	events      *reporter
	connections *connections
	ends        *ends
	logs        Logs
	places      *keyed.Places[string] // of cells that save logs, by namespace
	letting     *keyed.Places[string] // of cells that let go of volumes, by namespace
}

// Step saves what must outlive the cell: the logs of a pod that ran to its end,
// what the cell has yet to say to slow readers, and what is on its disks. A cell that cannot be reached is terminated
// without that. An event of its pod says so.
func (s *draining) Step(ctx context.Context, e *entry) (time.Duration, error) {
	e.async.drop(drains)
	cell := e.cell()
	if !e.drained && (cell.PodEnded || s.logs.HasStreams(cell.Pod.UID) || len(cell.Plugins) > 0 || len(cell.Disks) > 0 && hasDisks(s.calls)) {
		if err := s.loop.async(ctx, e, drains, func(drain context.Context) error {
			_, err := s.connections.bringUp(ctx, e) // a session outlives what it was dialled for
			return s.saveAll(drain, e, err)
		}); err != nil {
			return 0, err
		}
		e.drained = true
	}
	return 0, s.ends.startTerminating(ctx, e, e.cell().Reason)
}

// take waits for one of the places of a cell's namespace, before the time of what is done there runs: those
// who have them may wait for cells that do not answer.
func (e *entry) take(ctx context.Context, places *keyed.Places[string]) (leave func(), err error) {
	defer watchdog.Wait(ctx, watchdog.Cell)()
	return places.Take(ctx, e.cell().Pod.Namespace)
}

// letsGo asks an agent until its cell has let go of volumes, so that all is written. Its
// time runs from when its turn has come: what many write at the same time takes each longer.
func (s *draining) letsGo(ctx context.Context, e *entry, poll time.Duration, ask func(context.Context) error) error {
	leave, err := e.take(ctx, s.letting)
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

// saveAll saves what it can of a cell that was dialled, if with an error. Meanwhile
// nothing else is done with the cell. It returns an error only when ctx has ended.
func (s *draining) saveAll(ctx context.Context, e *entry, err error) error {
	var finishing sync.WaitGroup
	pod := e.cell().Pod.UID
	finishing.Go(func() { s.logs.Finish(ctx, pod) })
	err = s.savesLogs(ctx, e, err)
	if err == nil {
		err = s.freeVolumes(ctx, e) // other pods may wait for them
	}
	defer watchdog.Wait(ctx, watchdog.Cell)()
	finishing.Wait()
	s.logs.Finish(ctx, pod) // for who has begun to read meanwhile
	return err
}

// savesLogs saves the logs of a pod that ran to its end. It returns an error only when ctx has ended.
func (s *draining) savesLogs(ctx context.Context, e *entry, err error) error {
	if e.cell().PodEnded {
		if err == nil {
			err = s.connections.connectNow(ctx, e)
		}
		if e.session != nil { // an agent that takes no configuration may still have the logs
			err = s.saveLogs(ctx, e)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.events.report(e.cell(), events.NewLogsNotSaved(e.cell().ID, err))
		}
	}
	return nil
}

// freeVolumes has a cell let go of its pod's volumes. It returns an error only when ctx has ended.
func (s *draining) freeVolumes(ctx context.Context, e *entry) error {
	if len(e.cell().Plugins) > 0 {
		err := s.unplug(ctx, e)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.events.report(e.cell(), events.NewVolumeNotUnmounted(e.id, driverNames(e.cell().Plugins), err))
		}
	}
	if len(e.cell().Disks) > 0 && hasDisks(s.calls) {
		err := s.detach(ctx, e)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.loop.log.Warn("disks are freed with the instance, since they could not be before",
				"cell", e.id, "pod", e.cell().Pod.String(), "err", err)
		}
	}
	return nil
}

func (s *draining) saveLogs(ctx context.Context, e *entry) error {
	leave, err := e.take(ctx, s.places)
	if err != nil {
		return err
	}
	defer leave()
	defer watchdog.Wait(ctx, watchdog.Cell)()
	dialling, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if !e.ready(dialling) { // after a restart of Kip it may still be dialling
		return ErrNotConnected
	}
	if err := s.logs.SaveLogs(ctx, *e.cell(), e.session.Conn()); err != nil {
		return err
	}
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepLogsSaved, s.loop.clock.Now())
		return nil
	})
}

// unplug waits until the kubelet of a cell that is being drained has let go of all
// CSI volumes: what a driver has not written yet would be lost with the machine.
func (s *draining) unplug(ctx context.Context, e *entry) error {
	return s.letsGo(ctx, e, pluginPoll, func(ctx context.Context) error { return s.agents.putPlugins(ctx, e, e.session, nil) })
}

// detach takes the disks from a cell that is being drained. The agent unmounts
// them, so that all is written. They are then free for another cell before the
// instance is gone. A disk that cannot be unmounted is never torn off: the end of
// the instance frees the disk as surely.
func (s *draining) detach(ctx context.Context, e *entry) error {
	if err := s.letsGo(ctx, e, diskPoll, func(ctx context.Context) error { return s.agents.putDisks(ctx, e, e.session, nil) }); err != nil {
		return fmt.Errorf("unmount %s: %w", volumeNames(e.cell().Disks), err)
	}
	// What the agent took is not taken off the time for which the call may wait.
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	for _, d := range e.cell().Disks {
		if err := s.calls.Features().Disks.DetachDisk(ctx, d.ID, e.cell().Instance.ID); err != nil {
			return fmt.Errorf("detach volume %s: %w", d.Volume, err)
		}
	}
	return nil
}

// patient says that a cell's containers have ended, or soon will have. What is on
// its volumes is then worth a wait.
func patient(e *entry) bool {
	cause := e.cell().Cause
	return cause == CausePodEnded || cause == CausePodDeleted
}
