package cells

import (
	"cmp"
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
)

// cellEnds begins every end of a live cell, except an end that the cell's launch stores itself (recording). The cell's step then stores the
// end: here, or where it lets its pod go (watching), or where it has no instance (removals). cellEnds does not ask the guard: where that is
// needed, holds has done so before.
type cellEnds struct {
	table   *table
	loop    *loop
	records *records
	events  *reporter
}

// cellEnd is why a cell ends.
type cellEnd struct {
	cause    Cause        // the kind of it
	evidence string       // who has asked for it, or what was seen, for people
	event    events.Event // tells the owner of the cell's pod; zero where the owner is not told, or otherwise
}

// begin has a cell end, and tells the owner of its pod, unless the cell ends already.
func (s *cellEnds) begin(e *entry, end cellEnd) {
	s.table.mu.Lock()
	begun := s.beginLocked(e, end)
	s.table.mu.Unlock()
	if begun {
		s.report(e, end)
	}
}

// beginLocked has a cell end, from now on without any pod but its own, and wakes it. It reports whether it did: not if the cell ends
// already. The caller holds table.mu, and tells the owner without it.
func (s *cellEnds) beginLocked(e *entry, end cellEnd) bool {
	if e.ending != "" {
		return false
	}
	e.ending, e.cause = end.evidence, end.cause
	s.loop.queue.Add(e.id)
	return true
}

// report tells the owner of its pod why a cell ends.
func (s *cellEnds) report(e *entry, end cellEnd) {
	if end.event != (events.Event{}) {
		s.events.report(e.cell(), end.event)
	}
}

// startTerminating stores that the instance of a cell must go, and tells the owner of its pod.
func (s *cellEnds) startTerminating(ctx context.Context, e *entry, end cellEnd) error {
	s.report(e, end)
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.Token, cell.Cause = end.evidence, "", cmp.Or(cell.Cause, end.cause, CauseOther)
		cell.step(apiv1.StepEnded, s.loop.clock.Now())
		return cell.enter(apiv1.Terminating)
	})
}

// guardEnd returns the end of a cell that ends already, for the guard.
func guardEnd(cell *Cell, why string) guard.End {
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
	end := guardEnd(cell, why)
	end.Ground = guard.Unrequested
	return end
}
