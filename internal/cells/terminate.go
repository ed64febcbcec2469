package cells

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/gate"
	"k8s.io/apimachinery/pkg/types"
)

// terminateAgain is how long an instance may still be shown after the cloud has
// accepted its end; EC2 takes under a minute, with a hung shutdown some more.
const terminateAgain = 3 * time.Minute

// Between two tries to end one instance.
const firstEndRetry, longestEndRetry = time.Second, time.Minute

// tellAgain is when something that goes on is told again.
const tellAgain = 5 * time.Minute

// news is what was last told of something.
type news struct {
	what string
	at   time.Time
}

// is says that something is to be told: it is another than the last time, or that
// was long ago.
func (n *news) is(what string, now time.Time) bool {
	if n.what == what && now.Sub(n.at) < tellAgain {
		return false
	}
	*n = news{what, now}
	return true
}

// termination is the way of one instance to its end. But for what never changes it is
// under Controller.mu.
type termination struct {
	end  gate.End
	cell *entry // nil for an instance without one

	sending  bool      // a call is being made, or waited for
	accepted time.Time // when the cloud accepted it; zero before
	tries    int       // that failed
	next     time.Time // no call is made before
	told     news
}

// due says that the instance is to be ended now. The caller holds mu.
func (c *Controller) due(t *termination, now time.Time, shown look) bool {
	if t.sending || now.Before(t.next) {
		return false
	}
	_, there := shown.byID[t.end.Instance]
	// The first time, or when it was accepted and the instance is there yet.
	return t.accepted.IsZero() || there && shown.began.After(t.accepted.Add(terminateAgain))
}

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
	c.dropAside(e, takesRoutes)
	c.disconnect(e)
	look := c.inventory.last()
	cell := e.cell()
	if cell.Instance == nil {
		return c.findAbandoned(ctx, e, look)
	}
	id, now := cell.Instance.ID, c.cfg.Clock.Now()
	c.mu.Lock()
	t := c.terminating[id]
	if t == nil {
		t = &termination{end: c.endOf(cell, cell.Reason), cell: e}
		c.terminating[id] = t
	}
	if c.due(t, now, look) {
		t.sending = true
		c.terminations.add(t)
	}
	accepted := !t.accepted.IsZero()
	gone := !t.sending && accepted && look.began.After(t.accepted) && look.ended[id]
	wait := max(t.next.Sub(now), time.Second)
	c.mu.Unlock()
	if gone {
		if err := c.unroute(ctx, e, &e.routesGone); err != nil {
			return 0, err
		}
		return 0, c.gone(ctx, e, e.cell().Reason)
	}
	if !accepted {
		return wait, nil
	}
	if err := c.unroute(ctx, e, &e.unrouted); err != nil && !errors.Is(err, errUnderWay) {
		c.pollSoon()
		return 0, err
	}
	c.pollSoon()
	return time.Second, nil
}

// endOf is the end of a cell's instance, for the gate.
func (c *Controller) endOf(cell *Cell, why string) gate.End {
	return gate.End{
		Instance:   cell.Instance.ID,
		Cell:       cell.ID,
		Pod:        cell.Pod,
		Why:        why,
		Mistakable: cell.Cause == CauseLost && !cell.StepTime(apiv1.StepBound).IsZero(),
		Asked:      cell.Cause == CausePodEnded || cell.Cause == CausePodDeleted,
	}
}

// endStray ends an instance without a cell, which has our tags.
func (c *Controller) endStray(i cloud.Instance) {
	look, now := c.inventory.last(), c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.terminating[i.ID]
	if t == nil {
		t = &termination{end: gate.End{
			Instance: i.ID,
			Pod: apiv1.PodReference{
				Namespace: i.Tags[cloud.TagNamespace],
				Name:      i.Tags[cloud.TagPod],
				UID:       types.UID(i.Tags[cloud.TagPodUID]),
			},
			Why:        "it has Kip's tags and no cell",
			Mistakable: true,
		}}
		c.terminating[i.ID] = t
	}
	if c.due(t, now, look) {
		t.sending = true
		c.terminations.add(t)
	}
}

// forgetStrays forgets the ends of instances that are there no more, and have no
// cell.
func (c *Controller) forgetStrays(seen look) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, t := range c.terminating {
		if _, there := seen.byID[id]; !there && t.cell == nil && !t.sending {
			delete(c.terminating, id)
			c.cfg.Gate.Forget(id)
		}
	}
}

// population is how many cells run a pod, and how many instances have no cell.
func (c *Controller) population() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.inventory.strays()
	for _, e := range c.cells {
		if e.cell().Phase == apiv1.Bound {
			n++
		}
	}
	return n
}

// findAbandoned looks for an instance of a cell whose launch was given up. A list
// may lag behind a launch, and one answer may be older than the last: two complete
// looks must not show it, that show all others.
func (c *Controller) findAbandoned(ctx context.Context, e *entry, look look) (time.Duration, error) {
	if id, ok := look.byCell[e.cell().JoinID()]; ok {
		found := look.byID[id]
		return 0, c.save(ctx, e, func(cell *Cell) error { cell.take(found, c.cfg.Clock.Now()); return nil })
	}
	cell := e.cell()
	if !look.lacks && look.covers(cell.Offer().Zone) && look.began.Sub(cell.StepTime(apiv1.StepEnded)) >= c.cfg.ListLag+time.Second {
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

// terminateAll ends what has come together, each in its own time: what waits for its
// call meanwhile goes in one, and is heard of by instance.
func (c *Controller) terminateAll(ctx context.Context, all []*termination) {
	population := c.population()
	for _, t := range all {
		c.inTurn(ctx, "terminations", func(ctx context.Context) {
			err := c.cfg.Gate.Admit(ctx, t.end, population)
			if err == nil {
				err = c.cfg.Calls.Terminate(ctx, t.end.Instance).Err()
			}
			if ctx.Err() != nil {
				return
			}
			if err == nil && t.cell == nil {
				err = c.unrouteStray(ctx, t.end.Instance)
			}
			c.heardOfEnd(t, err)
			c.pollSoon()
		})
	}
}

// heardOfEnd takes the answer about one instance.
func (c *Controller) heardOfEnd(t *termination, err error) {
	now := c.cfg.Clock.Now()
	held, isHeld := errors.AsType[*gate.HeldError](err)
	c.mu.Lock()
	t.sending = false
	tell := false
	switch {
	case err == nil:
		t.accepted, t.tries = now, 0
		c.inventory.askAnew(t.end.Instance)
	case isHeld:
		t.next = now.Add(min(held.After, idlePoll))
		tell = t.told.is(string(held.Reason), now)
	default:
		t.tries++
		t.next = now.Add(max(retryAfter(err), c.cfg.Random.After(t.tries, firstEndRetry, longestEndRetry)))
		tell = t.told.is("failed "+string(cloud.CauseOf(err)), now)
	}
	c.mu.Unlock()
	if refusedWrite(err) {
		c.fail(err) // another leads
		return
	}
	switch {
	case err == nil:
	case isHeld && tell:
		c.tellHeld(t.end, held)
	case tell:
		c.tellEnd(t.end, events.CellNotTerminated, fmt.Sprintf("Instance %s could not be terminated: %v; retrying", t.end.Instance, err))
	}
	if t.cell == nil {
		if !isHeld {
			c.observers.OrphanEnded(err)
		}
		return
	}
	c.queue.Add(t.cell.id)
}

// tellEnd reports on the pod of an end; in the log, where it has none.
func (c *Controller) tellEnd(e gate.End, reason, message string) {
	c.cfg.Log.Warn(message, "instance", e.Instance, "cell", e.Cell, "pod", e.Pod.String(), "reason", reason)
	if e.Pod.UID != "" {
		c.cfg.Events.Event(e.Pod, warning, reason, message)
	}
}

// tellHeld reports an end that the gate holds back.
func (c *Controller) tellHeld(e gate.End, why *gate.HeldError) {
	message := fmt.Sprintf("Instance %s is not ended, although %s: %s", e.Instance, e.Why, why)
	if why.Reason != gate.ByStore {
		message += ". kipctl allow lets it end"
	}
	c.tellEnd(e, events.EndHeldBack, message)
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
