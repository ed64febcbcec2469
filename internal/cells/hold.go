package cells

import (
	"context"
	"errors"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/guard"
	"k8s.io/utils/clock"
)

// holds asks the guard whether a cell may end that nobody has asked to end, and shows which ends are held back.
type holds struct {
	table     *table
	clock     clock.PassiveClock
	records   *records
	events    *reporter
	guard     *guard.Guard
	inventory *inventory
	cells     perCell[holdState] // under table.mu
}

// holdState is why the end of a cell is held back. What it says of a cell that ends by now is over.
type holdState struct {
	why      string // "" if it is not
	reported dedup  // of that
}

// admit reports whether the guard admits the end of a cell. It shows and reports an end that is held back.
func (s *holds) admit(ctx context.Context, e *entry, end guard.End, population int) bool {
	held, isHeld := errors.AsType[*guard.HeldError](s.guard.Admit(ctx, end, population))
	if !isHeld {
		return true
	}
	s.table.mu.Lock()
	state := s.cells.of(e)
	changed := state.why != held.Text
	state.why = held.Text
	isNews := state.reported.note(string(held.Reason), s.clock.Now())
	s.table.mu.Unlock()
	if isNews {
		s.events.reportHeld(end, held)
	}
	if changed {
		s.records.showAgain(e)
	}
	return false
}

// showReleased stops showing cells as held back whose end nobody requests any more.
func (s *holds) showReleased() {
	var released []*entry
	s.table.mu.Lock()
	for _, e := range s.table.byID {
		if s.whyLocked(e) != "" && !s.guard.Holds(e.cell().Instance.ID) {
			*s.cells.of(e) = holdState{}
			released = append(released, e)
		}
	}
	s.table.mu.Unlock()
	for _, e := range released {
		s.records.showAgain(e)
	}
}

// whyLocked returns why the end of a cell is held back; "" if it is not. The caller holds table.mu.
func (s *holds) whyLocked(e *entry) string {
	if e.ending != "" {
		return ""
	}
	return s.cells.of(e).why
}

// population returns how many cells run a pod and how many instances have no cell, together.
func (s *holds) population() int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	n := s.inventory.orphanCount()
	for _, e := range s.table.byID {
		if e.cell().Phase == apiv1.Bound {
			n++
		}
	}
	return n
}
