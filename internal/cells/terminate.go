package cells

import (
	"cmp"
	"context"
	"errors"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
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
// under table.mu.
type termination struct {
	end  guard.End
	cell *entry // nil for an instance without one

	sending  bool      // a call is being made, or waited for
	accepted time.Time // when the cloud accepted it; zero before
	tries    int       // that failed
	next     time.Time // no call is made before
	told     news
}

// endings are the ends of instances that are under way, by these.
type endings struct {
	guard      *guard.Guard
	byInstance map[string]*termination // under the table's lock
}

// forget forgets the end of an instance. The caller holds the table's lock.
func (e *endings) forget(instance string) {
	delete(e.byInstance, instance)
	e.guard.Forget(instance)
}

// terminations end instances: those of cells, and those without one.
type terminations struct {
	table       *table
	loop        *loop
	records     *records
	calls       *pipe.Pipe
	guard       *guard.Guard
	events      *reporter
	observers   *observers
	inventory   *inventory
	endings     *endings
	ends        *ends
	routes      *routes
	connections *connections
	listLag     time.Duration
	queued      *gather[*termination]
}

// run ends instances until ctx ends.
func (s *terminations) run(ctx context.Context) {
	s.queued.run(ctx, func(all []*termination) {
		s.loop.pulse.Turn(ctx, "terminations", func(ctx context.Context) { s.terminateAll(ctx, all) })
	})
}

// due says that the instance is to be ended now. The caller holds table.mu.
func (s *terminations) due(t *termination, now time.Time, shown look) bool {
	if t.sending || now.Before(t.next) {
		return false
	}
	_, there := shown.byID[t.end.Instance]
	// The first time, or when it was accepted and the instance is there yet.
	return t.accepted.IsZero() || there && shown.began.After(t.accepted.Add(terminateAgain))
}

// Step tells the cloud to end the instance until it has accepted, then
// waits until a look at the cloud, begun after that, no longer shows it. Only
// then may another cell run the pod.
func (s *terminations) Step(ctx context.Context, e *entry) (time.Duration, error) {
	e.asides.drop(takesRoutes)
	s.connections.disconnect(e)
	look := s.inventory.last()
	cell := e.cell()
	if cell.Instance == nil {
		return s.findAbandoned(ctx, e, look)
	}
	id, now := cell.Instance.ID, s.loop.clock.Now()
	s.table.mu.Lock()
	t := s.endings.byInstance[id]
	if t == nil {
		t = &termination{end: endOf(cell, cell.Reason), cell: e}
		s.endings.byInstance[id] = t
	}
	if s.due(t, now, look) {
		t.sending = true
		s.queued.add(t)
	}
	accepted := !t.accepted.IsZero()
	gone := !t.sending && accepted && look.began.After(t.accepted) && look.ended[id]
	wait := max(t.next.Sub(now), time.Second)
	s.table.mu.Unlock()
	if gone {
		if err := s.routes.unroute(ctx, e, &e.routes.gone); err != nil {
			return 0, err
		}
		return 0, s.gone(ctx, e, e.cell().Reason)
	}
	if !accepted {
		return wait, nil
	}
	if err := s.routes.unroute(ctx, e, &e.routes.taken); err != nil && !errors.Is(err, errUnderWay) {
		s.inventory.pollSoon()
		return 0, err
	}
	s.inventory.pollSoon()
	return time.Second, nil
}

// endStray ends an instance without a cell, which has our tags.
func (s *terminations) endStray(i cloud.Instance) {
	look, now := s.inventory.last(), s.loop.clock.Now()
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	t := s.endings.byInstance[i.ID]
	if t == nil {
		t = &termination{end: guard.End{
			Instance: i.ID,
			Pod: apiv1.PodReference{
				Namespace: i.Tags[cloud.TagNamespace],
				Name:      i.Tags[cloud.TagPod],
				UID:       types.UID(i.Tags[cloud.TagPodUID]),
			},
			Why:    "it has Kip's tags and no cell",
			Ground: guard.Unrequested,
		}}
		s.endings.byInstance[i.ID] = t
	}
	if s.due(t, now, look) {
		t.sending = true
		s.queued.add(t)
	}
}

// forgetStrays forgets the ends of instances that are there no more, and have no
// cell.
func (s *terminations) forgetStrays(seen look) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for id, t := range s.endings.byInstance {
		if _, there := seen.byID[id]; !there && t.cell == nil && !t.sending {
			s.endings.forget(id)
		}
	}
}

// findAbandoned looks for an instance of a cell whose launch was given up. A list
// may lag behind a launch, and one answer may be older than the last: two complete
// looks must not show it, that show all others.
func (s *terminations) findAbandoned(ctx context.Context, e *entry, look look) (time.Duration, error) {
	if id, ok := look.byCell[e.cell().JoinID()]; ok {
		found := look.byID[id]
		return 0, s.records.save(ctx, e, func(cell *Cell) error { cell.take(found, s.loop.clock.Now()); return nil })
	}
	cell := e.cell()
	if !look.lacks && look.covers(cell.Offering().Zone) && look.began.Sub(cell.StepTime(apiv1.StepEnded)) >= s.listLag+time.Second {
		s.table.mu.Lock()
		first := e.unseen
		if first.IsZero() {
			e.unseen = look.began
		}
		s.table.mu.Unlock()
		if !first.IsZero() && look.began.After(first) {
			return 0, s.gone(ctx, e, cell.Reason)
		}
	}
	s.inventory.pollSoon()
	return time.Second, nil
}

// terminateAll ends what has come together, each in its own time: what waits for its
// call meanwhile goes in one, and is heard of by instance.
func (s *terminations) terminateAll(ctx context.Context, all []*termination) {
	population := s.ends.population()
	for _, t := range all {
		s.loop.inTurn(ctx, "terminations", func(ctx context.Context) {
			err := s.guard.Admit(ctx, t.end, population)
			if err == nil {
				err = s.calls.Terminate(ctx, t.end.Instance).Err()
			}
			if ctx.Err() != nil {
				return
			}
			if err == nil && t.cell == nil {
				err = s.routes.unrouteStray(ctx, t.end.Instance)
			}
			s.heardOfEnd(t, err)
			s.inventory.pollSoon()
		})
	}
}

// heardOfEnd takes the answer about one instance.
func (s *terminations) heardOfEnd(t *termination, err error) {
	now := s.loop.clock.Now()
	held, isHeld := errors.AsType[*guard.HeldError](err)
	s.table.mu.Lock()
	t.sending = false
	tell := false
	switch {
	case err == nil:
		t.accepted, t.tries = now, 0
		s.inventory.askAnew(t.end.Instance)
	case isHeld:
		t.next = now.Add(min(held.After, idlePoll))
		tell = t.told.is(string(held.Reason), now)
	default:
		t.tries++
		t.next = now.Add(max(retryAfter(err), s.loop.random.After(t.tries, firstEndRetry, longestEndRetry)))
		tell = t.told.is("failed "+string(cloud.CauseOf(err)), now)
	}
	s.table.mu.Unlock()
	if refusedWrite(err) {
		s.loop.fail(err) // another leads
		return
	}
	switch {
	case err == nil:
	case isHeld && tell:
		s.events.tellHeld(t.end, held)
	case tell:
		s.events.tellEnd(t.end, events.NewCellNotTerminated(t.end.Instance, err))
	}
	if t.cell == nil {
		if !isHeld {
			s.observers.OrphanEnded(err)
		}
		return
	}
	s.loop.queue.Add(t.cell.id)
}

// gone removes the record of a cell that has no instance.
func (s *terminations) gone(ctx context.Context, e *entry, why string) error {
	e.asides.drop("")
	s.connections.disconnect(e)
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.Token, cell.Cause = why, "", cmp.Or(cell.Cause, s.table.causeOf(e))
		cell.step(apiv1.StepTerminated, s.loop.clock.Now())
		return cell.enter(apiv1.Gone)
	})
}
