package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

// running is a cell that runs a pod.
func (b *bench) running(id string) *entry {
	return b.stored(Cell{
		ID: id, Pod: ref("pod of " + id), Phase: apiv1.Bound, Offerings: []Offering{{InstanceType: "nano"}},
		Instance: &cloud.Instance{ID: "i-" + id},
	})
}

func TestACellIsShownAsHeldBackOnceAndUntilNobodyWantsItsEnd(t *testing.T) {
	b := newBench(t)
	e := b.running("c")
	why := func() string {
		b.table.mu.Lock()
		defer b.table.mu.Unlock()
		return (&watching{evacuating: b.evacuating()}).waitsForLocked(e)
	}
	end := unrequested(e.cell(), "why")
	end.LastHeartbeat = b.clock.Now()
	for range 2 {
		if b.holds.admit(t.Context(), e, end, 1) {
			t.Fatal("the end of a cell that was just heard is admitted")
		}
	}
	if why() != heldBack+"it was heard less than 40s ago" || len(b.said) != 1 || len(b.shown) != 1 {
		t.Errorf("it waits for %q, said %v, shown %d times", why(), b.said, len(b.shown))
	}
	if b.holds.showReleased(); why() == "" {
		t.Error("it is not shown as held back any more, and its end is")
	}
	b.clock.Step(2 * time.Minute)
	if b.holds.showReleased(); why() != "" || len(b.shown) != 2 {
		t.Errorf("nobody wants its end, and it waits for %q, shown %d times", why(), len(b.shown))
	}
	if !b.holds.admit(t.Context(), e, end, 1) || len(b.said) != 1 {
		t.Errorf("the end of a silent cell is held back: %v", b.said)
	}
}

func TestThePopulationIsBoundCellsAndInstancesWithoutACell(t *testing.T) {
	b := newBench(t)
	b.running("a")
	b.running("b")
	b.booting("c")
	b.inventory.sightings.at("i").orphan = b.clock.Now()
	if n := b.holds.population(); n != 3 {
		t.Errorf("it is %d, want 3", n)
	}
}

func TestALostCellEndsForItsSignUnlessItIsHeard(t *testing.T) {
	long, now := -time.Hour, time.Duration(0)
	for name, tc := range map[string]struct {
		phase  apiv1.Phase
		sure   bool
		heard  time.Duration // from now
		fault  error
		ends   bool
		marked bool
		unfit  bool
	}{
		"it is silent":                       {apiv1.Bound, false, long, nil, true, false, false},
		"it was just heard":                  {apiv1.Bound, false, now, nil, false, false, false},
		"the cloud is sure, and has no more": {apiv1.Bound, true, long, cloud.ErrCapacity, true, true, false},
		"the cloud cannot start it":          {apiv1.Booting, true, long, cloud.ErrUnfit, true, false, true},
	} {
		b := newBench(t)
		s := b.endingLost()
		e := b.running("c")
		if tc.phase == apiv1.Booting {
			e = b.booting("d")
		}
		launched := e.cell().clone()
		launched.Template = b.recipe.template(launched.CloudInit())
		e.current.Store(&launched)
		heard := b.clock.Now().Add(tc.heard)
		ends := s.end(t.Context(), e, 1, sign{
			cause: CauseLost, why: "why", sure: tc.sure, fault: tc.fault, heard: func() time.Time { return heard },
		})
		if why, _ := b.table.ending(e); ends != tc.ends || (why == "why") != tc.ends || len(b.said) != 1 {
			t.Errorf("%s: it ends %t for %q, said %v", name, ends, why, b.said)
		}
		if (len(b.marked) == 1) != tc.marked || (len(s.blockers.byKind) == 1) != tc.unfit {
			t.Errorf("%s: marked %v, unfit are %d", name, b.marked, len(s.blockers.byKind))
		}
		if tc.ends && (!s.end(t.Context(), e, 1, sign{}) || e.cause != CauseLost) {
			t.Errorf("%s: it is lost a second time, for %s", name, e.cause)
		}
	}
}

func TestAnEndIsUnrequestedOnlyOfACellThatWasLostWithItsPod(t *testing.T) {
	bound := Cell{ID: "c", Instance: &cloud.Instance{ID: "i"}}
	bound.step(apiv1.StepBound, time.Unix(1, 0))
	for cause, want := range map[Cause]guard.Ground{
		CausePodEnded: guard.Requested, CausePodDeleted: guard.Requested, CauseLost: guard.Unrequested, CauseInterrupted: guard.Harmless,
	} {
		cell := bound
		cell.Cause = cause
		if got := guardEnd(&cell, "why").Ground; got != want {
			t.Errorf("%s: %d, want %d", cause, got, want)
		}
	}
	if got := guardEnd(&Cell{Instance: &cloud.Instance{}, Cause: CauseLost}, "why").Ground; got != guard.Harmless {
		t.Errorf("lost without a pod: %d", got)
	}
}
