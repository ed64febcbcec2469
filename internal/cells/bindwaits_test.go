package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
)

func TestACellIsWaitedForAsItsPreparationSays(t *testing.T) {
	broken := errors.New("broken")
	disk, route := &stage{name: "disk"}, &stage{name: "route"}
	told := func(what string) events.Event { return events.Event{Reason: "Waits", Message: what} }
	silent := bindWait{by: disk, progress: waitFor("its disk", time.Second), event: told("its disk"), silence: 10 * time.Second}
	other := silent
	other.by = route
	less := bindWait{by: disk, progress: waitFor("its disk", time.Second), longest: 4 * time.Second}
	refused := bindWait{
		by: disk, failure: broken, timeout: time.Minute, end: cellEnd{CauseNoDisk, "refused", events.Event{Reason: "GivenUp"}},
	}
	held := bindWait{by: disk, failure: broken}
	polled := refused
	polled.failure, polled.progress = nil, waitFor("its disk", 4*time.Second)
	woken := refused
	woken.failure, woken.progress = nil, await("its kubelet")
	type step struct {
		after   time.Duration
		restart bool // before
		over    bool // before
		wait    bindWait
		again   time.Duration
		fails   bool
		ends    bool
		said    int // by then
	}
	for name, steps := range map[string][]step{
		"its pod's owner is told after a silence, once": {
			{wait: silent, again: time.Second}, {after: 9 * time.Second, wait: silent, again: time.Second},
			{after: time.Second, wait: silent, again: time.Second, said: 1}, {after: time.Hour, wait: silent, again: time.Second, said: 1},
		},
		"another wait is silent anew": {
			{wait: silent, again: time.Second}, {after: 9 * time.Second, wait: other, again: time.Second},
			{after: 9 * time.Second, wait: other, again: time.Second}, {after: time.Second, wait: other, again: time.Second, said: 1},
		},
		"a wait that begins again is silent anew, and is not told twice": {
			{wait: silent, again: time.Second}, {after: 10 * time.Second, wait: silent, again: time.Second, said: 1},
			{after: time.Second, restart: true, wait: silent, again: time.Second, said: 1},
			{after: 10 * time.Second, wait: silent, again: time.Second, said: 1},
		},
		"the next wait is told, after one that is over": {
			{wait: silent, again: time.Second}, {after: 10 * time.Second, wait: silent, again: time.Second, said: 1},
			{after: time.Second, over: true, wait: silent, again: time.Second, said: 1},
			{after: 10 * time.Second, wait: silent, again: time.Second, said: 2},
		},
		"it checks less and less often": {
			{wait: less, again: time.Second}, {wait: less, again: 2 * time.Second}, {wait: less, again: 4 * time.Second},
			{wait: less, again: 4 * time.Second}, {restart: true, wait: less, again: time.Second}, {wait: silent, again: time.Second},
		},
		"it ends after its timeout": {
			{wait: refused, fails: true}, {after: 59 * time.Second, wait: refused, fails: true},
			{after: time.Second, wait: refused, ends: true, said: 1},
		},
		"it has its whole timeout after a wait without one": {
			{wait: refused, fails: true}, {after: 59 * time.Second, wait: held, fails: true}, {after: time.Hour, wait: refused, fails: true},
			{after: 59 * time.Second, wait: refused, fails: true}, {after: time.Second, wait: refused, ends: true, said: 1},
		},
		"it checks at its timeout": {
			{wait: polled, again: 4 * time.Second}, {after: 58 * time.Second, wait: polled, again: 2 * time.Second},
			{after: 2 * time.Second, wait: polled, ends: true, said: 1},
		},
		"it checks at its timeout, if nothing wakes it": {
			{wait: woken, again: time.Minute}, {after: time.Minute, wait: woken, ends: true, said: 1},
		},
	} {
		b := newBench(t)
		e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Ready})
		s := b.waiting()
		for i, step := range steps {
			b.clock.Step(step.after)
			if step.restart {
				s.restart(e)
			}
			if step.over {
				s.over(t.Context(), e)
			}
			got, err := s.wait(t.Context(), e, step.wait)
			why, _ := b.table.ending(e)
			want := step.wait.progress
			want.again = step.again
			switch {
			case step.ends:
				want = leave
			case step.fails:
				want = progress{}
			}
			if got != want || (err != nil) != step.fails || (why != "") != step.ends || len(b.said) != step.said {
				t.Errorf("%s: step %d: %+v (%v), want %+v; it ends by %q, said %v", name, i, got, err, want, why, b.said)
			}
		}
	}
}

// What says nothing of what a cell waits for neither ends its wait nor begins another.
func TestAReportLeavesTheWaitAsItIs(t *testing.T) {
	b := newBench(t)
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Ready})
	s := b.waiting()
	end := cellEnd{cause: CauseNoDisk, evidence: "refused"}
	refused := bindWait{by: &stage{}, progress: waitFor("its disk", time.Second), timeout: time.Minute, end: end}
	for range 4 {
		if got, err := s.wait(t.Context(), e, refused); got.again != time.Second || err != nil {
			t.Fatalf("it waits for %+v (%v)", got, err)
		}
		b.clock.Step(15 * time.Second)
		s.report(t.Context(), e, events.Event{Reason: "Throttled", Message: "by the cloud"})
	}
	b.table.mu.Lock()
	says := s.lastReportedLocked(e)
	b.table.mu.Unlock()
	if got, _ := s.wait(t.Context(), e, refused); got != leave || says != "by the cloud" || len(b.said) != 1 {
		t.Errorf("after its timeout it is %+v; it waits for %q, said %v", got, says, b.said)
	}
}
