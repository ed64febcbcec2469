package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
)

// drainTimeout bounds what is saved from a cell before the cell is terminated. A
// longer wait for a machine that does not answer costs more than it saves.
const drainTimeout = 30 * time.Second

// drain saves what must outlive the cell: the logs of a pod that ran to its end,
// and what is on its disks. A cell that cannot be reached is terminated without.
// An event of its pod says so.
func (c *Controller) drain(ctx context.Context, e *entry) (time.Duration, error) {
	if e.cell().PodEnded {
		err := c.connect(ctx, e)
		if e.session != nil { // an agent that takes no configuration may still have the logs
			err = c.saveLogs(ctx, e)
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err != nil {
			c.warn(e.cell(), events.LogsNotSaved, "The logs of cell %s could not be saved before it was terminated: %v", e.cell().ID, err)
		}
	}
	if len(e.cell().Plugins) > 0 {
		err := c.unplug(ctx, e)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err != nil {
			c.warn(e.cell(), events.VolumeNotUnmounted, "Cell %s is terminated, and its kubelet has not let go of the volumes of %s: %v",
				e.id, driverNames(e.cell().Plugins), err)
		}
	}
	if len(e.cell().Disks) > 0 && c.cfg.Disks != nil {
		err := c.detach(ctx, e)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err != nil {
			c.cfg.Log.Warn("disks are freed with the instance, since they could not be before",
				"cell", e.id, "pod", e.cell().Pod.String(), "err", err)
		}
	}
	return 0, c.startTerminating(ctx, e, e.cell().Reason)
}

func (c *Controller) saveLogs(ctx context.Context, e *entry) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if !e.ready(ctx) { // after a restart of Kip it may still be dialling
		return ErrNotConnected
	}
	if err := c.cfg.SaveLogs(ctx, e.cell().Pod, e.session.Conn()); err != nil {
		return err
	}
	return c.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepLogsSaved, c.cfg.Clock.Now())
		return nil
	})
}
