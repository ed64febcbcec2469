package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

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
