package cells

import (
	"cmp"
	"context"
	"errors"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
)

// ends begins the end of cells: of lost ones if the guard admits it, and of those that nobody needs.
type ends struct {
	table     *table
	loop      *loop
	records   *records
	events    *reporter
	guard     *guard.Guard
	inventory *inventory
	blockers  *blockers
	shortages Shortages
}

// holdState is why the end of a cell is held back; under the table's lock.
type holdState struct {
	why  string // "" if it is not
	told dedup  // of that
}

// sign is what speaks for the end of a cell that nobody has asked to end.
type sign struct {
	cause Cause
	why   string
	// sure says that the cloud is positive that the instance has ended, or was to end:
	// then there is nothing that an end could destroy.
	sure bool
	// fault is why the cloud has ended the instance, where it says so.
	fault error
	// heard returns when the cell was last heard, or could not have been. It is called without the table's lock.
	heard func() time.Time
	// disruption is why Kip may not be able to hear the cell at all; "" if it may.
	disruption string
}

// lose ends a cell that is lost, if the guard admits it. It reports whether the cell
// ends. The cell may come back until the cloud has confirmed its end. Only then does
// the pod get another.
func (s *ends) lose(ctx context.Context, e *entry, population int, of sign) bool {
	if why, _ := s.table.endingOf(e); why != "" {
		return true
	}
	cell := e.cell()
	end := unrequested(cell, of.why)
	end.LastHeartbeat, end.Heard, end.Disruption = of.heard(), of.heard, of.disruption
	if cell.Phase != apiv1.Bound || of.sure { // of a cell without a pod, nothing is lost that another launch does not give
		end.Ground = guard.Harmless
	}
	if !s.admit(ctx, e, end, population) {
		return false
	}
	if lacks(of.fault) { // what it could not serve after all is not asked for again at once
		s.shortages.Mark(cell.Offering(), of.fault)
	}
	if errors.Is(of.fault, cloud.ErrUnfit) {
		s.blockers.noteNotStarted(cell, of.fault)
	}
	s.begin(e, of.cause, of.why)
	return true
}

// admit reports whether the guard admits the end of a cell. It shows and reports an end that is held back.
func (s *ends) admit(ctx context.Context, e *entry, end guard.End, population int) bool {
	held, isHeld := errors.AsType[*guard.HeldError](s.guard.Admit(ctx, end, population))
	if !isHeld {
		return true
	}
	s.table.mu.Lock()
	changed := e.hold.why != held.Text
	e.hold.why = held.Text
	tell := e.hold.told.note(string(held.Reason), s.loop.clock.Now())
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
func (s *ends) showReleased() {
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

// begin ends a cell that is lost.
func (s *ends) begin(e *entry, cause Cause, why string) {
	s.table.mu.Lock()
	begun := e.beginEnd(cause, why)
	s.table.mu.Unlock()
	if begun {
		s.sayLost(e, why)
	}
}

// beginEnd has a cell end that is lost, from now on without any pod but its own, unless it ends
// already. The caller holds table.mu, and says it with sayLost when it does not.
func (e *entry) beginEnd(cause Cause, why string) bool {
	if e.ending != "" {
		return false
	}
	e.ending, e.cause, e.hold.why = why, cause, ""
	return true
}

// sayLost says that a cell that is lost begins to end, and has it end.
func (s *ends) sayLost(e *entry, why string) {
	s.events.report(e.cell(), events.NewCellLost(e.id, why))
	s.loop.queue.Add(e.id)
}

// startTerminating stores that the instance must go.
func (s *ends) startTerminating(ctx context.Context, e *entry, why string) error {
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.Token, cell.Cause = why, "", cmp.Or(cell.Cause, s.table.causeOf(e))
		cell.step(apiv1.StepEnded, s.loop.clock.Now())
		return cell.enter(apiv1.Terminating)
	})
}

// endOf returns the end of a cell that ends already, for the guard.
func endOf(cell *Cell, why string) guard.End {
	end := guard.End{
		Instance: cell.Instance.ID,
		Cell:     cell.ID,
		Pod:      cell.Pod,
		Why:      why,
		Ground:   guard.Harmless,
	}
	switch {
	case cell.Cause == CausePodEnded || cell.Cause == CausePodDeleted:
		end.Ground = guard.Requested
	case cell.Cause == CauseLost && !cell.StepTime(apiv1.StepBound).IsZero():
		end.Ground = guard.Unrequested
	}
	return end
}

// unrequested returns the end of a cell that runs a pod, for the guard.
func unrequested(cell *Cell, why string) guard.End {
	end := endOf(cell, why)
	end.Ground = guard.Unrequested
	return end
}

// population returns how many cells run a pod and how many instances have no cell, together.
func (s *ends) population() int {
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
