package cells

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// terminateAgain is how long an instance may still be shown after the cloud has
// accepted its end; EC2 takes under a minute, with a hung shutdown some more.
const terminateAgain = 3 * time.Minute

// terminateMost is how many instances one call ends; EC2 takes 1,000.
const terminateMost = 500

// terminateCalls is how many calls that end instances are made at a time, so that
// one that hangs holds nobody up.
const terminateCalls = 4

// startTerminating stores that the instance must go.
func (c *Controller) startTerminating(ctx context.Context, e *entry, why string) error {
	return c.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.Token, cell.Cause = why, "", cmp.Or(cell.Cause, c.causeOf(e))
		cell.step(apiv1.StepEnded, c.cfg.Clock.Now())
		return cell.enter(apiv1.Terminating)
	})
}

// terminate tells the cloud to end the instance until it has accepted, then
// waits until a look at the cloud, begun after that, no longer shows it. Only
// then may another cell run the pod.
func (c *Controller) terminate(ctx context.Context, e *entry) (time.Duration, error) {
	c.dropAside(e, "")
	c.disconnect(e)
	look := c.inventory.last()
	instance := e.cell().Instance
	if instance == nil {
		return c.findAbandoned(ctx, e, look)
	}
	_, there := look.byID[instance.ID]
	c.mu.Lock()
	// The first time, or when it was accepted and the instance is there yet.
	if !e.terminating && (e.terminated.IsZero() || there && look.began.After(e.terminated.Add(terminateAgain))) {
		e.terminating = true
		c.terminations.add(e)
	}
	gone := !e.terminating && look.began.After(e.terminated) && look.ended[instance.ID]
	c.mu.Unlock()
	if gone {
		return 0, c.gone(ctx, e, e.cell().Reason)
	}
	c.pollSoon()
	return time.Second, nil
}

// findAbandoned looks for an instance of a cell whose launch was given up. A list
// may lag behind a launch, and one answer may be older than the last: two complete
// looks must not show it.
func (c *Controller) findAbandoned(ctx context.Context, e *entry, look look) (time.Duration, error) {
	if id, ok := look.byCell[e.id]; ok {
		found := look.byID[id]
		return 0, c.save(ctx, e, func(cell *Cell) error { cell.Instance = &found; return nil })
	}
	cell := e.cell()
	if look.covers(cell.Offer().Zone) && look.began.Sub(cell.StepTime(apiv1.StepEnded)) >= c.cfg.ListLag+time.Second {
		c.mu.Lock()
		first := e.unseen
		if first.IsZero() {
			e.unseen = look.began
		}
		c.mu.Unlock()
		if !first.IsZero() && look.began.After(first) {
			return 0, c.gone(ctx, e, cell.Reason)
		}
	}
	c.pollSoon()
	return time.Second, nil
}

// terminateAll ends the instances of the cells that have come together.
func (c *Controller) terminateAll(ctx context.Context, entries []*entry) {
	ids := make([]string, len(entries))
	for n, e := range entries {
		ids[n] = e.cell().Instance.ID
	}
	results := c.cfg.Cloud.Terminate(ctx, ids...)
	if ctx.Err() != nil {
		return
	}
	if len(results) != len(ids) {
		results = cloud.Each(fmt.Errorf("the cloud answered a termination of %d with %d results", len(ids), len(results)), ids...)
	}
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	for n, e := range entries {
		e.terminating = false
		if results[n].Err == nil {
			e.terminated = now
			c.inventory.askAnew(ids[n])
		}
	}
	c.mu.Unlock()
	for n, e := range entries {
		if err := results[n].Err; err != nil {
			c.warn(e.cell(), events.CellNotTerminated, "Instance %s of cell %s could not be terminated: %v; retrying", ids[n], e.id, err)
			c.again(e, err)
			continue
		}
		c.queue.Add(e.id)
	}
	c.pollSoon()
}

// gone removes the record of a cell that has no instance.
func (c *Controller) gone(ctx context.Context, e *entry, why string) error {
	c.dropAside(e, "")
	c.disconnect(e)
	return c.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.Token, cell.Cause = why, "", cmp.Or(cell.Cause, c.causeOf(e))
		cell.step(apiv1.StepTerminated, c.cfg.Clock.Now())
		return cell.enter(apiv1.Gone)
	})
}
