package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// bind gives the cell its pod, once and for good.
func (c *Controller) bind(ctx context.Context, e *entry) (time.Duration, error) {
	// From here on the kubelet may see the pod: whoever wants to let the cell
	// go must know, so the decision is made under the lock that they take.
	c.mu.Lock()
	why := e.ending
	e.binding = why == ""
	c.mu.Unlock()
	if why != "" {
		return 0, c.startTerminating(ctx, e, why)
	}
	if err := c.connect(ctx, e); err != nil {
		return 0, err
	}
	if err := c.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepBound, c.cfg.Clock.Now())
		return cell.enter(apiv1.Bound)
	}); err != nil {
		return 0, err
	}
	pod := e.cell().Pod
	return 0, e.api.Bind(pod.Namespace, pod.Name, pod.UID)
}

// silentPoll is how often the cloud is asked while a bound cell is silent.
const silentPoll = 2 * time.Second

// watch keeps a bound cell connected until its pod lets it go.
func (c *Controller) watch(ctx context.Context, e *entry) (time.Duration, error) {
	why, podEnded := c.endingOf(e)
	if why == "" {
		if err := c.connect(ctx, e); err != nil {
			return 0, err
		}
		if !e.session.Connected() {
			c.pollSoon() // is the machine still there?
			return silentPoll, nil
		}
		return 0, nil
	}
	return 0, c.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.PodEnded = why, podEnded
		cell.step(apiv1.StepEnded, c.cfg.Clock.Now())
		return cell.enter(apiv1.Draining)
	})
}
