package cells

import (
	"context"
	"errors"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/lanes"
	"github.com/elotl/kip/internal/pulse"
)

// drainTimeout bounds how long Kip waits for a cell to answer before it terminates it. A
// longer wait for a machine that does not answer costs more than it saves. Logs that
// come take longer: podlogs bounds that.
const drainTimeout = 30 * time.Second

// drain saves what must outlive the cell: the logs of a pod that ran to its end,
// what the cell has yet to say to slow readers, and what is on its disks. A cell that cannot be reached is terminated
// without that. An event of its pod says so.
func (c *Controller) drain(ctx context.Context, e *entry) (time.Duration, error) {
	c.dropAside(e, drains)
	cell := e.cell()
	if !e.drained && (cell.PodEnded || c.cfg.Logs.HasStreams(cell.Pod.UID) || len(cell.Plugins) > 0 || len(cell.Disks) > 0 && c.hasDisks()) {
		if err := c.aside(ctx, e, drains, func(drain context.Context) error {
			_, err := c.dialled(ctx, e) // a session outlives what it was dialled for
			return c.saveAll(drain, e, err)
		}); err != nil {
			return 0, err
		}
		e.drained = true
	}
	return 0, c.startTerminating(ctx, e, e.cell().Reason)
}

// take waits for one of the places of a cell's namespace, before the time of what is done there runs: those
// who have them may wait for cells that do not answer.
func (e *entry) take(ctx context.Context, places *keyed.Places[string]) (leave func(), err error) {
	defer pulse.Wait(ctx, pulse.Cell)()
	return places.Take(ctx, e.cell().Pod.Namespace)
}

// letsGo asks an agent until its cell has let go of volumes, so that all is written. Its
// time runs from when its turn has come: what many write at the same time takes each longer.
func (c *Controller) letsGo(ctx context.Context, e *entry, poll time.Duration, ask func(context.Context) error) error {
	leave, err := e.take(ctx, c.letting)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := c.reach(ctx, e); err != nil {
		return err
	}
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		again := errors.Is(err, agentapi.ErrNotYet) || errors.Is(err, lanes.ErrSlow)
		if !again || !c.patient(e) || !c.sleep(ctx, c.cfg.Random.Jittered(poll)) {
			return err
		}
	}
}

// saveAll saves what it can of a cell that was dialled, if with an error. Meanwhile
// nothing else is done with the cell. It returns an error only when ctx has ended.
func (c *Controller) saveAll(ctx context.Context, e *entry, err error) error {
	var finishing sync.WaitGroup
	pod := e.cell().Pod.UID
	finishing.Go(func() { c.cfg.Logs.Finish(ctx, pod) })
	err = c.savesLogs(ctx, e, err)
	if err == nil {
		err = c.freeVolumes(ctx, e) // other pods may wait for them
	}
	defer pulse.Wait(ctx, pulse.Cell)()
	finishing.Wait()
	c.cfg.Logs.Finish(ctx, pod) // for who has begun to read meanwhile
	return err
}

// savesLogs saves the logs of a pod that ran to its end. It returns an error only when ctx has ended.
func (c *Controller) savesLogs(ctx context.Context, e *entry, err error) error {
	if e.cell().PodEnded {
		if err == nil {
			err = c.connectNow(ctx, e)
		}
		if e.session != nil { // an agent that takes no configuration may still have the logs
			err = c.saveLogs(ctx, e)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			c.warn(e.cell(), events.LogsNotSaved, "The logs of cell %s could not be saved before it was terminated: %v", e.cell().ID, err)
		}
	}
	return nil
}

// freeVolumes has a cell let go of its pod's volumes. It returns an error only when ctx has ended.
func (c *Controller) freeVolumes(ctx context.Context, e *entry) error {
	if len(e.cell().Plugins) > 0 {
		err := c.unplug(ctx, e)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			c.warn(e.cell(), events.VolumeNotUnmounted, "Cell %s is terminated, and its kubelet has not let go of the volumes of %s: %v",
				e.id, driverNames(e.cell().Plugins), err)
		}
	}
	if len(e.cell().Disks) > 0 && c.hasDisks() {
		err := c.detach(ctx, e)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			c.cfg.Log.Warn("disks are freed with the instance, since they could not be before",
				"cell", e.id, "pod", e.cell().Pod.String(), "err", err)
		}
	}
	return nil
}

func (c *Controller) saveLogs(ctx context.Context, e *entry) error {
	leave, err := e.take(ctx, c.logs)
	if err != nil {
		return err
	}
	defer leave()
	defer pulse.Wait(ctx, pulse.Cell)()
	dialling, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if !e.ready(dialling) { // after a restart of Kip it may still be dialling
		return ErrNotConnected
	}
	if err := c.cfg.Logs.SaveLogs(ctx, *e.cell(), e.session.Conn()); err != nil {
		return err
	}
	return c.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepLogsSaved, c.cfg.Clock.Now())
		return nil
	})
}
