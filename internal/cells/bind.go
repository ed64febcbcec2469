package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// bind gives the cell its pod, once and for good. A standby cell without a pod is
// kept connected until a pod takes the cell.
func (c *Controller) bind(ctx context.Context, e *entry) (time.Duration, error) {
	// A cell that was launched for its pod was not before nobody else ran the pod.
	if cell := e.cell(); cell.Standby != "" && cell.Pod.UID != "" && !c.nobodyElseRuns(e) {
		if why, _ := c.endingOf(e); why == "" {
			c.pollSoon()
			return time.Second, nil
		}
	}
	if why, _ := c.endingOf(e); why == "" && c.mayRunMore(e) {
		return time.Second, nil
	}
	if ready, again, err := c.keepAgent(ctx, e); err != nil || !ready {
		return again, err
	}
	if ready, again, err := c.rename(ctx, e); err != nil || !ready {
		return again, err
	}
	if ready, again, err := c.attach(ctx, e); err != nil || !ready {
		return again, err
	}
	if ready, again, err := c.route(ctx, e); err != nil || !ready {
		return again, err
	}
	if ready, again, err := c.plug(ctx, e); err != nil || !ready {
		return again, err
	}
	if ready, again, err := c.equip(ctx, e); err != nil || !ready {
		return again, err
	}
	if why, _ := c.endingOf(e); why == "" && !e.cell().Stopped {
		if err := c.connect(ctx, e); err != nil {
			return 0, err
		}
	}
	// From here on the kubelet may see the pod. Whoever lets the cell go must know:
	// both decide under mu.
	c.mu.Lock()
	why, pod := e.ending, e.cell().Pod
	e.binding = why == "" && pod.UID != "" && !e.cell().Stopped
	c.mu.Unlock()
	if why != "" {
		return 0, c.startTerminating(ctx, e, why)
	}
	if e.cell().Stopped {
		return c.stopOrStart(ctx, e)
	}
	if _, ends := c.interrupted(ctx, e); ends {
		return 0, nil
	}
	if pod.UID == "" {
		return c.idle(ctx, e)
	}
	if err := c.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepBound, c.cfg.Clock.Now())
		return cell.enter(apiv1.Bound)
	}); err != nil {
		return 0, err
	}
	return 0, e.show()
}

// silentPoll is how often the cloud is asked while a bound cell is silent.
const silentPoll = 2 * time.Second

// watch keeps a bound cell connected until its pod lets it go.
func (c *Controller) watch(ctx context.Context, e *entry) (time.Duration, error) {
	why, podEnded := c.endingOf(e)
	if why == "" {
		left, _ := c.interrupted(ctx, e)
		if err := c.connect(ctx, e); err != nil {
			return left, err
		}
		if !e.session.Connected() {
			c.pollSoon() // is the machine still there?
			return silentPoll, nil
		}
		return left, nil
	}
	return 0, c.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.PodEnded, cell.Cause = why, podEnded, c.causeOf(e)
		cell.step(apiv1.StepEnded, c.cfg.Clock.Now())
		return cell.enter(apiv1.Draining)
	})
}
