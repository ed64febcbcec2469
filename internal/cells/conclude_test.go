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
	l, _, err := b.intents().store(b.Context(), b.grouped(ids...), nil)
	if err != nil {
		b.Fatal(err)
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
		s, l := b.concluding(), b.under("c", "d")
		if tc.until != 0 {
			l.until = b.clock.Now().Add(tc.until)
		}
		group := slices.Clone(l.group)
		got := s.conclude(t.Context(), s.begin(l, false), tc.results)
		if len(got.over) != tc.over || got.again != tc.again || got.err != nil || len(l.open()) != 2-tc.over {
			t.Errorf("%s: over for %d, again after %s (%v), %d are open", name, len(got.over), got.again, got.err, len(l.open()))
		}
		if len(b.said) != tc.said || b.launchRecords() != tc.stored || group[1].cell().Phase == apiv1.Booting != (tc.over == 2) {
			t.Errorf("%s: said %v, %d calls are stored", name, b.said, b.launchRecords())
		}
		for _, e := range group {
			if !e.launching {
				t.Errorf("%s: it has given cell %s back by itself", name, e.id)
			}
		}
	}
}

func TestALaunchOfWhichTheOutcomeCannotBeStoredIsOverForNobody(t *testing.T) {
	b := newBench(t)
	s, l := b.concluding(), b.under("c")
	b.hook = func(op, _ string) error {
		if op != "applied" {
			return store.ErrNotLeader
		}
		return nil
	}
	got := s.conclude(t.Context(), s.begin(l, false), cloud.LaunchResults{{Instance: cloud.Instance{ID: "i"}}})
	if !errors.Is(got.err, store.ErrNotLeader) || len(got.over) != 0 || len(l.open()) != 1 {
		t.Errorf("over for %d, %d are open (%v)", len(got.over), len(l.open()), got.err)
	}
	if launching := b.launching(); launching.act(got) {
		t.Error("the launch goes on")
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
	s, l := b.concluding(), b.under("c", "d")
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
				t.Errorf("while the other is stored, the first is %s, and the group's: %t", group[0].cell().Phase, group[0].launching)
			}
		}
		return nil
	}
	got := s.conclude(t.Context(), s.begin(l, false), cloud.LaunchResults{{Instance: cloud.Instance{ID: "i-c"}},
		{Instance: cloud.Instance{ID: "i-d"}}})
	if !looked || got.err != nil || !slices.Equal(got.over, group[1:]) || b.launchRecords() != 0 {
		t.Errorf("over for %d (%v), %d calls are stored", len(got.over), got.err, b.launchRecords())
	}
}

func TestALaunchWhoseCallIsLostEndsItsCells(t *testing.T) {
	b := newBench(t)
	s, l := b.concluding(), b.under("c", "d")
	group := slices.Clone(l.group)
	if got := s.abandon(t.Context(), l, errors.New("it is lost")); len(got.over) != 2 || got.err != nil || b.launchRecords() != 0 {
		t.Errorf("over for %d (%v), %d calls are stored", len(got.over), got.err, b.launchRecords())
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
		s, group := b.concluding(), b.grouped("c")
		got := s.concludeUnresolved(t.Context(), slices.Clone(group), tc.err)
		e := group[0]
		if !slices.Equal(got.over, group) || got.err != nil || e.resolving.failed != tc.tries || e.cell().Phase != tc.phase {
			t.Errorf("%s: over for %d (%v), %d tries, it is %s", name, len(got.over), got.err, e.resolving.failed, e.cell().Phase)
		}
		if paused := !s.answers.rights.pause.since.IsZero(); paused != tc.paused || len(b.marked) != tc.marked {
			t.Errorf("%s: launches are paused %t, marked %v", name, paused, b.marked)
		}
	}
}

func TestALaunchThatIsNotResolvedForNoReasonOfItsOwnIsTriedAgain(t *testing.T) {
	b := newBench(t)
	s := b.concluding().unresolved
	group := b.requested("c")
	for try := 1; try <= 2; try++ {
		waiting, refused, _ := s.judge(group, errors.New("no answer"))
		if e := group[0]; e.resolving.failed != try || len(waiting) != 1 || len(refused) > 0 || len(b.said) != 1 {
			t.Errorf("after %d tries: %+v, %d wait, said %v", try, e.resolving, len(waiting), b.said)
		}
	}
}
