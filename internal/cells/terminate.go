package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// startTerminating stores that the instance must go.
func (c *Controller) startTerminating(ctx context.Context, e *entry, why string) error {
	return c.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.Token = why, ""
		cell.step(apiv1.StepEnded, c.cfg.Clock.Now())
		return cell.enter(apiv1.Terminating)
	})
}

// terminate tells the cloud to end the instance until it has accepted, then
// waits until a look at the cloud, begun after that, no longer shows it. Only
// then may another cell run the pod.
func (c *Controller) terminate(ctx context.Context, e *entry) (time.Duration, error) {
	c.disconnect(e)
	id := e.cell().Instance.ID
	if e.terminated.IsZero() {
		call, cancel := context.WithTimeout(ctx, launchTimeout)
		err := c.cfg.Cloud.Terminate(call, id)
		cancel()
		if err != nil {
			return 0, fmt.Errorf("terminate instance %s: %w", id, err)
		}
		e.terminated = c.cfg.Clock.Now()
	}
	look := c.lastLook()
	_, there := look.instance(id)
	if look.began.After(e.terminated) && !there {
		return 0, c.gone(ctx, e, e.cell().Reason)
	}
	if look.began.After(e.terminated.Add(terminateAgain)) {
		e.terminated = time.Time{} // accepted, yet there: ask again
	}
	c.pollSoon()
	return time.Second, nil
}

// terminateAgain is how long an instance may still be shown after the cloud has
// accepted its end; EC2 takes under a minute, with a hung shutdown some more.
const terminateAgain = 3 * time.Minute

// gone removes the record of a cell that has no instance.
func (c *Controller) gone(ctx context.Context, e *entry, why string) error {
	c.disconnect(e)
	e.writing.Lock()
	defer e.writing.Unlock()
	cell := e.cell().clone()
	cell.Reason, cell.Token = why, ""
	cell.step(apiv1.StepTerminated, c.cfg.Clock.Now())
	if err := cell.enter(apiv1.Gone); err != nil {
		return err
	}
	if err := c.cfg.Store.Delete(ctx, keyPrefix+cell.ID, e.revision); err != nil {
		return err
	}
	e.current.Store(&cell)
	c.mu.Lock()
	delete(c.cells, cell.ID)
	c.unreserve(cell)
	c.mu.Unlock()
	c.cfg.Changed(cell)
	return nil
}
