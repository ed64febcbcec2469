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

// ends begins the ends of cells: of those that are lost, if the guard lets them, and of those that are not wanted.
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
	told news   // of that
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
	// heard is when the cell was last heard, where that speaks against it.
	heard time.Time
	// doubt is why the fault is more likely Kip's own; "" where it is not.
	doubt string
}

// lose ends a cell that is lost, if the guard lets it. It returns whether the cell
// ends. The cell may come back until the cloud has confirmed its end. Only then does
// the pod get another.
func (s *ends) lose(ctx context.Context, e *entry, population int, of sign) bool {
	if why, _ := s.table.endingOf(e); why != "" {
		return true
	}
	cell := e.cell()
	end := endOf(cell, of.why)
	// Of a cell that runs no pod yet, nothing is lost that another launch does not give.
	end.Mistakable, end.Heard, end.Doubt = cell.Phase == apiv1.Bound && !of.sure, of.heard, of.doubt
	if !s.admit(ctx, e, end, population) {
		return false
	}
	if lacks(of.fault) { // what it could not serve after all is not asked for again at once
		s.shortages.Mark(cell.Offering(), of.fault)
	}
	if errors.Is(of.fault, cloud.ErrUnfit) {
		s.blockers.heardNotStarted(cell, of.fault)
	}
	s.begin(e, of.cause, of.why)
	return true
}

// admit asks the guard whether a cell may end. Where it holds the end back that is shown
// and told.
func (s *ends) admit(ctx context.Context, e *entry, end guard.End, population int) bool {
	held, isHeld := errors.AsType[*guard.HeldError](s.guard.Admit(ctx, end, population))
	if !isHeld {
		return true
	}
	s.table.mu.Lock()
	changed := e.hold.why != held.Text
	e.hold.why = held.Text
	tell := e.hold.told.is(string(held.Reason), s.loop.clock.Now())
	s.table.mu.Unlock()
	if tell {
		s.events.tellHeld(end, held)
	}
	if changed {
		s.records.showAgain(e)
	}
	return false
}

// showReleased takes back that the end of a cell is held back, where nobody wants it
// any more.
func (s *ends) showReleased() {
	var released []*entry
	s.table.mu.Lock()
	for _, e := range s.table.byID {
		if e.hold.why != "" && !s.guard.Holds(e.cell().Instance.ID) {
			e.hold.why, e.hold.told = "", news{}
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

// endOf is the end of a cell's instance, for the guard.
func endOf(cell *Cell, why string) guard.End {
	return guard.End{
		Instance:   cell.Instance.ID,
		Cell:       cell.ID,
		Pod:        cell.Pod,
		Why:        why,
		Mistakable: cell.Cause == CauseLost && !cell.StepTime(apiv1.StepBound).IsZero(),
		Asked:      cell.Cause == CausePodEnded || cell.Cause == CausePodDeleted,
	}
}

// population is how many cells run a pod, and how many instances have no cell.
func (s *ends) population() int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	n := s.inventory.strays()
	for _, e := range s.table.byID {
		if e.cell().Phase == apiv1.Bound {
			n++
		}
	}
	return n
}
