package cells

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

// under are cells whose launch is stored, and is under way.
func (b *bench) under(ids ...string) *launch {
	b.Helper()
	l := &launch{group: b.grouped(ids...)}
	if others := b.intents().store(b.Context(), l); len(others) > 0 {
		b.Fatal(others[0].answer.Err)
	}
	return l
}

func TestOnlyWhatIsNotKnownOfALaunchIsSentAgain(t *testing.T) {
	launched := cloud.LaunchResult{Instance: cloud.Instance{ID: "i-c", State: cloud.Running}}
	lost := cloud.LaunchResult{Err: errors.New("no answer")}
	busy := cloud.LaunchResult{Err: &cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: time.Minute, NothingDone: true}}
	for name, tc := range map[string]struct {
		results cloud.LaunchResults
		until   time.Duration // when the secret expires; 0 for never
		over    int
		again   time.Duration
		said    int // of it
		stored  int // calls
	}{
		"all are launched":              {cloud.LaunchResults{launched, {Instance: cloud.Instance{ID: "i-d"}}}, 0, 2, 0, 2, 0},
		"one has no answer":             {cloud.LaunchResults{launched, lost}, 0, 1, firstRetry, 2, 1},
		"the cloud says when":           {cloud.LaunchResults{launched, busy}, 0, 1, time.Minute, 2, 1},
		"the secret expires before":     {cloud.LaunchResults{launched, busy}, time.Second, 1, time.Second, 2, 1},
		"the secret has expired by now": {cloud.LaunchResults{lost, lost}, -time.Second, 0, 0, 2, 1},
	} {
		b := newBench(t)
		launching, l := b.launching(), b.under("c", "d")
		s := launching.evaluating
		if tc.until != 0 {
			l.until = b.clock.Now().Add(tc.until)
		}
		group := slices.Clone(l.group)
		tries := s.begin(l)
		known := s.evaluate(tries, tc.results)
		for _, e := range group {
			if e.cell().Phase != apiv1.Launching || !e.launching {
				t.Errorf("%s: cell %s is changed before its outcome is stored", name, e.id)
			}
		}
		goesOn := launching.settle(t.Context(), l, known)
		if len(known) != tc.over || goesOn != (tc.over < 2) || len(l.open()) != 2-tc.over {
			t.Errorf("%s: over for %d, %d are open; it goes on %t", name, len(known), len(l.open()), goesOn)
		}
		if goesOn {
			if again := s.delay(tries); again != tc.again {
				t.Errorf("%s: again after %s, want %s", name, again, tc.again)
			}
		}
		if len(b.said) != tc.said || b.launchRecords() != tc.stored || group[1].cell().Phase == apiv1.Booting != (tc.over == 2) {
			t.Errorf("%s: said %v, %d calls are stored", name, b.said, b.launchRecords())
		}
		for _, e := range group {
			if open := slices.Contains(l.group, e); e.launching != open || (e.cell().Phase == apiv1.Launching) != open {
				t.Errorf("%s: cell %s is %s, its launch's %t", name, e.id, e.cell().Phase, e.launching)
			}
		}
	}
}

func TestALaunchOfWhichTheOutcomeCannotBeStoredIsOverForNobody(t *testing.T) {
	b := newBench(t)
	s, l := b.launching(), b.under("c")
	b.hook = func(op, _ string) error {
		if op != "applied" {
			return store.ErrNotLeader
		}
		return nil
	}
	if s.settle(t.Context(), l, s.evaluating.evaluate(s.evaluating.begin(l), cloud.LaunchResults{{Instance: cloud.Instance{ID: "i"}}})) {
		t.Error("the launch goes on")
	}
	if open := l.open(); len(open) != 1 || !open[0].launching {
		t.Errorf("%d are open", len(open))
	}
	select {
	case err := <-b.loop.failed:
		if !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("the run ends with %v", err)
		}
	default:
		t.Error("the run does not end, though another Kip writes the records")
	}
}

// What one transaction does not take is stored in parts, and the store may be slow, or away.
func TestCellsDoNotWaitForTheOutcomesOfOthers(t *testing.T) {
	b := newBench(t)
	s, l := b.launching(), b.under("c", "d")
	group := slices.Clone(l.group)
	looked := false
	b.hook = func(op, key string) error {
		both := strings.Contains(key, keyPrefix+"c") && strings.Contains(key, keyPrefix+"d")
		switch {
		case op == "applied":
		case both:
			return store.ErrTooBig
		case strings.Contains(key, keyPrefix+"d"):
			looked = true
			if group[0].launching || group[0].cell().Phase != apiv1.Booting || !group[1].launching {
				t.Errorf("while the other is stored, the first is %s, and its launch's: %t", group[0].cell().Phase, group[0].launching)
			}
		}
		return nil
	}
	goesOn := s.settle(t.Context(), l, s.evaluating.evaluate(s.evaluating.begin(l), cloud.LaunchResults{
		{Instance: cloud.Instance{ID: "i-c"}}, {Instance: cloud.Instance{ID: "i-d"}},
	}))
	if !looked || goesOn || group[1].launching || group[1].cell().Phase != apiv1.Booting || b.launchRecords() != 0 {
		t.Errorf("it goes on %t; the second is %s, %d calls are stored", goesOn, group[1].cell().Phase, b.launchRecords())
	}
}

// The answer of a write may be lost: what it wrote is found, and people are told of it once.
func TestAnOutcomeWhoseWriteHasNoAnswerIsSettledOnce(t *testing.T) {
	for name, op := range map[string]string{"it is written": "applied", "it is not": "apply"} {
		b := newBench(t)
		s, l := b.launching(), b.under("c", "d")
		group, lost := slices.Clone(l.group), false
		b.hook = func(at, key string) error {
			if is := strings.Contains(key, keyPrefix+"c"); lost || !is || at != op {
				return nil
			}
			lost = true
			go func() { // settle sleeps
				for !b.clock.HasWaiters() {
					time.Sleep(time.Millisecond)
				}
				b.clock.Step(firstRetry)
			}()
			return errors.New("no answer")
		}
		goesOn := s.settle(t.Context(), l, s.evaluating.evaluate(s.evaluating.begin(l), cloud.LaunchResults{
			{Instance: cloud.Instance{ID: "i-c"}}, {Instance: cloud.Instance{ID: "i-d"}},
		}))
		if !lost || goesOn || len(b.said) != 2 || b.launchRecords() != 0 {
			t.Errorf("%s: lost %t, it goes on %t; said %v, %d calls are stored", name, lost, goesOn, b.said, b.launchRecords())
		}
		for _, e := range group {
			if e.launching || e.cell().Phase != apiv1.Booting {
				t.Errorf("%s: cell %s is %s, its launch's %t", name, e.id, e.cell().Phase, e.launching)
			}
		}
	}
}

func TestALaunchWhoseCallIsLostEndsItsCells(t *testing.T) {
	b := newBench(t)
	s, l := b.launching(), b.under("c", "d")
	group := slices.Clone(l.group)
	s.resume(t.Context(), l, errors.New("it is lost"))
	b.loop.running.Wait()
	if len(l.open()) > 0 || b.launchRecords() != 0 {
		t.Errorf("%d are open, %d calls are stored", len(l.open()), b.launchRecords())
	}
	for _, e := range group {
		if cell := e.cell(); cell.Phase != apiv1.Terminating || cell.Cause != CauseNotLaunched || len(b.marked) > 0 {
			t.Errorf("it is %s for %s; marked %v", cell.Phase, cell.Cause, b.marked)
		}
	}
}

func TestAnUnresolvedLaunchWaitsOrGoesToTheNextOffering(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		tries  int
		phase  apiv1.Phase
		marked int
		paused bool
	}{
		"there is no answer":      {errors.New("no answer"), 1, apiv1.Requested, 0, false},
		"it is refused":           {cloud.No(cloud.ErrRefused, cloud.Scope{Subnet: "s"}, errors.New("no subnet")), 0, apiv1.Gone, 1, false},
		"Kip has no right to any": {cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("no")), 0, apiv1.Requested, 0, true},
	} {
		b := newBench(t)
		s, e := b.launching(), b.grouped("c")[0]
		l := &launch{group: []*entry{e}, turn: b.turn()}
		known := s.resolving.outcomesOfFailure(l, tc.err)
		if e.cell().Phase != apiv1.Requested || !e.launching {
			t.Errorf("%s: the cell is changed before its outcome is stored", name)
		}
		goesOn := s.settle(t.Context(), l, known)
		if goesOn || e.launching || l.turn != nil || b.retries.tries.of(e).failed != tc.tries || e.cell().Phase != tc.phase {
			t.Errorf("%s: goes on %t; its launch's %t, %d tries, it is %s", name, goesOn, e.launching, b.retries.tries.of(e).failed, e.cell().Phase)
		}
		if paused := !s.evaluating.answers.rights.breaker.since.IsZero(); paused != tc.paused || len(b.marked) != tc.marked {
			t.Errorf("%s: launches are paused %t, marked %v", name, paused, b.marked)
		}
	}
}

func TestALaunchThatIsNotResolvedForNoReasonOfItsOwnIsTriedAgain(t *testing.T) {
	b := newBench(t)
	s := b.launching().resolving.unresolved
	group := b.requested("c")
	for try := 1; try <= 2; try++ {
		known := s.outcomes(group, errors.New("no answer"))
		if e := group[0]; b.retries.tries.of(e).failed != try || len(known) != 1 || known[0].verdict != isUnresolved || len(b.said) != 1 {
			t.Errorf("after %d tries: %+v, %d outcomes, said %v", try, b.retries.tries.of(e), len(known), b.said)
		}
	}
}
