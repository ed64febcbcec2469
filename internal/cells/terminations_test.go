package cells

import (
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

func TestAnEndIsAskedForOnceAndAgainWhileTheInstanceStays(t *testing.T) {
	now := time.Unix(1e9, 0)
	there := map[string]cloud.Instance{"i": {ID: "i"}}
	for name, tc := range map[string]struct {
		t    termination
		seen snapshot
		due  bool
	}{
		"nobody has asked":                {termination{}, snapshot{}, true},
		"it is being asked":               {termination{sending: true}, snapshot{}, false},
		"it has failed a moment ago":      {termination{next: now.Add(time.Second)}, snapshot{}, false},
		"it has failed a while ago":       {termination{next: now}, snapshot{}, true},
		"it is accepted":                  {termination{accepted: now}, snapshot{began: now.Add(time.Minute), byID: there}, false},
		"it is accepted, and stays":       {termination{accepted: now}, snapshot{began: now.Add(terminateAgain + 1), byID: there}, true},
		"it is accepted, and is not seen": {termination{accepted: now}, snapshot{began: now.Add(terminateAgain + 1)}, false},
	} {
		tc.t.end.Instance = "i"
		if due := tc.t.dueLocked(now, tc.seen); due != tc.due {
			t.Errorf("%s: due %t", name, due)
		}
	}
}

// ending returns the parts that end instances, on a bench.
func (b *bench) ending() (*terminateAnswers, *orphanTerminations) {
	routes := &routes{table: b.table, loop: b.loop, calls: b.calls}
	return &terminateAnswers{
		loop: b.loop, terminations: b.terminations, inventory: b.inventory, routes: routes, events: b.events, observers: b.observers,
	}, &orphanTerminations{inventory: b.inventory, terminations: b.terminations}
}

func TestTheAnswerToAnEndSaysWhenToAskAgain(t *testing.T) {
	b := newBench(t)
	s, _ := b.ending()
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Terminating, Instance: &cloud.Instance{ID: "i"}})
	ask := func() time.Duration {
		_, again := b.terminations.terminate(guardEnd(e.cell(), ""), e, snapshot{})
		return again
	}
	ask()
	end := b.terminations.byInstance["i"]
	for _, tc := range []struct {
		err   error
		again time.Duration
		said  int // in all
	}{
		{errors.New("no answer"), time.Second, 1},
		{errors.New("no answer"), 2 * time.Second, 1},
		{&cloud.Error{Cause: cloud.ErrThrottled, Err: errors.New("busy"), RetryAfter: 30 * time.Second}, 30 * time.Second, 2},
		{&guard.HeldError{Reason: guard.ByStore, Text: "held", After: time.Hour}, idlePoll, 3},
	} {
		b.woken()
		if !end.sending || !b.terminations.sending("i") {
			t.Fatalf("before %v nothing is being asked", tc.err)
		}
		s.note(t.Context(), end, tc.err)
		if again := ask(); again != tc.again || b.terminations.sending("i") || len(b.said) != tc.said {
			t.Errorf("%v: again after %s, sending %t, said %v", tc.err, again, b.terminations.sending("i"), b.said)
		}
		if !slices.Equal(b.woken(), []string{"c"}) || !b.asked() {
			t.Errorf("%v: the cell is not woken, or no snapshot is asked for", tc.err)
		}
		b.clock.Step(tc.again)
		ask()
	}
	s.note(t.Context(), end, nil)
	if !b.terminations.accepted("i").Equal(b.clock.Now()) || len(b.orphans) != 0 {
		t.Error("it is not noted that the cloud has accepted the end")
	}
	b.terminations.forget("i")
	if !b.terminations.accepted("i").IsZero() || b.terminations.sending("i") {
		t.Error("an end that is forgotten goes on")
	}
}
