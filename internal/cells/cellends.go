package cells

import (
	"cmp"
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
)

// cellEnds begins the end of cells. It does not ask the guard: where that is needed, holds has done so before.
type cellEnds struct {
	table   *table
	loop    *loop
	records *records
	events  *reporter
}

// begin ends a cell, and says so by an Event of its pod, if it does not end already.
func (s *cellEnds) begin(e *entry, cause Cause, why string, said events.Event) {
	s.table.mu.Lock()
	begun := e.beginEndLocked(cause, why)
	s.table.mu.Unlock()
	if begun {
		s.say(e, said)
	}
}

// beginEndLocked has a cell end, from now on without any pod but its own, and reports whether it did: not if the cell ends already.
// The caller holds table.mu, and queues the cell.
func (e *entry) beginEndLocked(cause Cause, why string) bool {
	if e.ending != "" {
		return false
	}
	e.ending, e.cause, e.hold.why = why, cause, ""
	return true
}

// say reports why a cell begins to end, and has it end.
func (s *cellEnds) say(e *entry, said events.Event) {
	s.events.report(e.cell(), said)
	s.loop.queue.Add(e.id)
}

// startTerminating stores that the instance must go.
func (s *cellEnds) startTerminating(ctx context.Context, e *entry, cause Cause, why string) error {
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.Token, cell.Cause = why, "", cmp.Or(cell.Cause, cause, CauseOther)
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
