package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// interruptionRetry is the wait before interruptions are listened to again after
// an error: half a minute of a notice of two.
const interruptionRetry = 5 * time.Second

// hearInterruptions takes the cloud's notices until ctx ends.
func (c *Controller) hearInterruptions(ctx context.Context) {
	source, ok := c.cfg.Cloud.(cloud.Interrupter)
	if !ok {
		return
	}
	for ctx.Err() == nil {
		err := source.Interruptions(ctx, func(i cloud.Interruption) { c.interrupt(ctx, i) })
		if ctx.Err() != nil {
			return
		}
		c.cfg.Log.Warn("listen for interruptions, it is tried again", "cloud", c.cfg.Cloud.Name(), "err", err)
		c.sleep(ctx, interruptionRetry)
	}
}

// interrupt notes that the cloud takes an instance back. A cell without a pod is
// replaced at once; a pod that runs is told to move, and its cell ends with the
// notice.
func (c *Controller) interrupt(ctx context.Context, i cloud.Interruption) {
	c.mu.Lock()
	var found *entry
	for _, e := range c.cells {
		if in := e.cell().Instance; in != nil && in.ID == i.InstanceID {
			found = e
		}
	}
	c.mu.Unlock()
	if found == nil || !found.cell().Live() || !found.cell().Interrupted.IsZero() {
		return
	}
	why := fmt.Sprintf("the cloud takes instance %s back at %s: %s", i.InstanceID, i.At.UTC().Format(time.RFC3339), i.Reason)
	for ctx.Err() == nil {
		err := c.save(ctx, found, func(cell *Cell) error {
			cell.Interrupted = i.At
			return nil
		})
		if err == nil {
			break
		}
		c.cfg.Log.Warn("store an interruption, it is tried again", "cell", found.id, "instance", i.InstanceID, "err", err)
		if refusedWrite(err) || !c.sleep(ctx, time.Second) {
			return
		}
	}
	c.warn(found.cell(), "Interrupted", "Cell %s will be lost: %s", found.id, why)
	c.queue.Add(found.id)
}

// interrupted carries out what a notice asks for. It returns how long to wait for
// its end.
func (c *Controller) interrupted(e *entry) (time.Duration, bool) {
	cell := e.cell()
	if cell.Interrupted.IsZero() {
		return 0, false
	}
	left := cell.Interrupted.Sub(c.cfg.Clock.Now())
	if cell.Phase != apiv1.Bound || left <= 0 {
		c.endFor(e, CauseInterrupted, "the cloud took its instance back")
		return 0, true
	}
	if !e.told {
		e.told = true
		c.cfg.Interrupted(*cell)
	}
	return left, true
}
