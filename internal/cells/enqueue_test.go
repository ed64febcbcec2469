package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
)

// enqueuing returns what adds cells to the queue of launches.
func (b *bench) enqueuing() *enqueuing {
	return &enqueuing{
		table: b.table, calls: b.calls, breakers: launchBreakers{rights: b.rights(), blockers: b.blocking()}, launches: b.launchQueue,
		removals: b.removing(),
		preparations: b.prepared(
			b.retries, &launchDuplicates{duplicateWaits: b.duplicateWaits(), inventory: b.inventory},
		),
	}
}

func TestACellIsAddedToThoseToBeLaunchedOnceNothingHoldsItUp(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*bench, *enqueuing, *entry)
		again  time.Duration
		waits  bool // in the queue
		gone   bool
		said   string // the reason of an Event
	}{
		"nothing holds it up": {func(*bench, *enqueuing, *entry) {}, 0, true, false, ""},
		"a try has failed": {func(b *bench, _ *enqueuing, e *entry) {
			b.retries.tries.of(e).next = b.clock.Now().Add(time.Second)
		}, time.Second, false, false, ""},
		"nothing is listed yet": {func(b *bench, _ *enqueuing, _ *entry) {
			b.listed(snapshot{})
		}, time.Second, false, false, events.InstancesNotListed},
		"what the operator configured is refused": {func(b *bench, s *enqueuing, e *entry) {
			fault := s.breakers.blockers.ofKindLocked(b.recipe.startKind(e.cell()))
			fault.why, fault.until = "no key", b.clock.Now().Add(time.Second)
		}, time.Second, false, false, events.LaunchDelayed},
		"Kip has no right to launch": {func(b *bench, s *enqueuing, _ *entry) {
			s.breakers.rights.breaker = rightsBreaker{breaker: breaker{until: b.clock.Now().Add(time.Minute)}, since: b.clock.Now()}
		}, time.Minute, false, false, events.LaunchesPaused},
		"its pod is gone": {func(b *bench, _ *enqueuing, e *entry) {
			b.end(e, CausePodDeleted)
		}, 0, false, true, ""},
		"its pod goes while it waits": {func(b *bench, s *enqueuing, e *entry) {
			if _, err := s.Step(b.Context(), e); err != nil {
				b.Fatal(err)
			}
			b.end(e, CausePodDeleted)
		}, 0, false, true, ""},
	} {
		b := newBench(t)
		s := b.enqueuing()
		b.generation.compared = true
		b.listed(snapshot{began: b.clock.Now()})
		e := b.requested("c")[0]
		tc.before(b, s, e)
		for range 2 { // the second is of a cell that waits already, or is gone
			again, err := after(s.Step(t.Context(), e))
			if again != tc.again || err != nil && (!tc.gone || !errors.Is(err, errGone)) {
				t.Errorf("%s: again after %s (%v)", name, again, err)
			}
		}
		if got := e.cell(); (got.Phase == apiv1.Gone) != tc.gone || e.launching != tc.waits || (len(b.launchQueue.items) == 1) != tc.waits {
			t.Errorf("%s: it is %s, launching %t, %d wait", name, got.Phase, e.launching, len(b.launchQueue.items))
		}
		if tc.gone && e.cell().Cause != CausePodDeleted {
			t.Errorf("%s: it is gone for %s", name, e.cell().Cause)
		}
		if len(b.said) > 1 || (len(b.said) == 1) != (tc.said != "") {
			t.Errorf("%s: said %v", name, b.said)
		}
	}
}

func TestACellWaitsForWhatHoldsUpLaunchesInOrder(t *testing.T) {
	b := newBench(t)
	s := b.enqueuing()
	r := s.breakers.rights
	e := b.requested("c")[0]
	wait := func(why string, want time.Duration) {
		t.Helper()
		if got, err := after(s.Step(t.Context(), e)); got != want || e.launching != (want == 0) || err != nil {
			t.Errorf("%s: again after %s (%v), launching %t; want it to wait %s", why, got, err, e.launching, want)
		}
	}
	b.retries.tries.of(e).next = b.clock.Now().Add(3 * time.Second)
	wait("a try has failed", 3*time.Second)
	b.retries.restart(e)
	if wait("the cloud has listed nothing", time.Second); !b.asked() {
		t.Error("no snapshot is asked for")
	}
	b.listed(snapshot{began: b.clock.Now()})
	b.generation.compared = true
	r.breaker = rightsBreaker{breaker: breaker{until: b.clock.Now().Add(5 * time.Second)}, since: b.clock.Now()}
	wait("Kip has no right", 5*time.Second)
	r.breaker = rightsBreaker{}
	fault := s.breakers.blockers.ofKindLocked(b.recipe.startKind(e.cell()))
	fault.why, fault.until = "no key", b.clock.Now().Add(2*time.Second)
	wait("what the operator configured is refused", 2*time.Second)
	fault.until = b.clock.Now()
	wait("nothing", 0)
	s.launches.remove(e)
	e.giveBackLocked()
	b.generation.now.UnknownLines = map[string]uint64{"other": 1}
	wait("the store is behind", idlePoll)
}
