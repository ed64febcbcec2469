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
}

// holdState is why the end of a cell is held back; under the table's lock.
type holdState struct {
	why  string // "" if it is not
	told dedup  // of that
}

// admit reports whether the guard admits the end of a cell. It shows and reports an end that is held back.
func (s *holds) admit(ctx context.Context, e *entry, end guard.End, population int) bool {
	held, isHeld := errors.AsType[*guard.HeldError](s.guard.Admit(ctx, end, population))
	if !isHeld {
		return true
	}
	s.table.mu.Lock()
	changed := e.hold.why != held.Text
	e.hold.why = held.Text
	tell := e.hold.told.note(string(held.Reason), s.clock.Now())
	s.table.mu.Unlock()
	if tell {
		s.events.tellHeld(end, held)
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
		if e.hold.why != "" && !s.guard.Holds(e.cell().Instance.ID) {
			e.hold.why, e.hold.told = "", dedup{}
			released = append(released, e)
		}
	}
	s.table.mu.Unlock()
	for _, e := range released {
		s.records.showAgain(e)
	}
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
