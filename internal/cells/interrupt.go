package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// interruptionRetry is the wait after an error before Kip listens for interruptions
// again. Of a notice of two minutes little is lost.
const interruptionRetry = 5 * time.Second

// hearInterruptions takes the cloud's notices until ctx ends.
func (c *Controller) hearInterruptions(ctx context.Context) {
	source := c.cfg.Calls.Features().Interrupter
	if source == nil {
		return
	}
	for ctx.Err() == nil {
		err := source.Interruptions(ctx, func(i cloud.Interruption) {
			c.cfg.Pulse.Turn(ctx, "interruptions", func(ctx context.Context) { c.interrupt(ctx, i) })
		})
		if ctx.Err() != nil {
			return
		}
		c.cfg.Log.Warn("listen for interruptions, retrying", "cloud", c.cfg.Calls.Name(), "err", err)
		c.sleep(ctx, c.cfg.Random.Jittered(interruptionRetry))
	}
}

// interrupt notes that the cloud takes an instance back. A cell without a pod is
// replaced at once. A bound cell ends with the notice, and its pod moves before.
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
	at := i.At
	if i.Left != 0 {
		at = c.cfg.Clock.Now().Add(i.Left)
	}
	why := fmt.Sprintf("the cloud takes instance %s back at %s: %s", i.InstanceID, at.UTC().Format(time.RFC3339), i.Reason)
	for ctx.Err() == nil {
		err := c.save(ctx, found, func(cell *Cell) error {
			cell.Interrupted = at
			return nil
		})
		if err == nil {
			break
		}
		if errors.Is(err, errGone) {
			return
		}
		c.cfg.Log.Warn("store an interruption, retrying", "cell", found.id, "instance", i.InstanceID, "err", err)
		if refusedWrite(err) || !c.sleep(ctx, c.cfg.Random.Jittered(time.Second)) {
			return
		}
	}
	c.warn(found.cell(), events.Interrupted, "Cell %s will be lost: %s", found.id, why)
	c.queue.Add(found.id)
}

// interrupted carries out what a notice asks for. It returns how long is left until
// the instance is lost, 0 where no notice was given, and whether the cell ends now.
func (c *Controller) interrupted(e *entry) (left time.Duration, ends bool) {
	cell := e.cell()
	if cell.Interrupted.IsZero() {
		return 0, false
	}
	left = cell.Interrupted.Sub(c.cfg.Clock.Now())
	const taken = "the cloud took its instance back"
	if cell.Phase != apiv1.Bound {
		c.endFor(e, CauseInterrupted, taken)
		return 0, true
	}
	if left <= 0 {
		c.mu.Lock()
		heard := c.mayHaveBeenHeard(e)
		c.mu.Unlock()
		c.lose(e, 0, sign{cause: CauseInterrupted, why: taken, sure: true, heard: heard})
		return silentPoll, true
	}
	if !e.told {
		e.told = true
		c.observers.CellInterrupted(*cell)
	}
	return left, true
}
