package cells

import (
	"context"
	"errors"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
)

// lostCells ends cells that are lost, if the guard admits it.
type lostCells struct {
	table     *table
	ends      *cellEnds
	holds     *holds
	blockers  *blockers
	shortages Shortages
}

// sign is what speaks for the end of a cell that nobody has asked to end.
type sign struct {
	cause Cause
	why   string
	// sure reports whether the cloud is positive that the instance has ended, or was to end:
	// then there is nothing that an end could destroy.
	sure bool
	// fault is why the cloud has ended the instance, where it says so.
	fault error
	// heard returns when the cell was last heard, or could not have been. It is called without the table's lock.
	heard func() time.Time
	// disruption is why Kip may not be able to hear the cell at all; "" if it may.
	disruption string
}

// end ends a cell that is lost, if the guard admits it. It reports whether the cell
// ends. The cell may come back until the cloud has confirmed its end. Only then does
// the pod get another.
func (s *lostCells) end(ctx context.Context, e *entry, population int, of sign) bool {
	if why, _ := s.table.ending(e); why != "" {
		return true
	}
	cell := e.cell()
	end := unrequested(cell, of.why)
	end.LastHeartbeat, end.Heard, end.Disruption = of.heard(), of.heard, of.disruption
	if cell.Phase != apiv1.Bound || of.sure { // of a cell without a pod, nothing is lost that another launch does not give
		end.Ground = guard.Harmless
	}
	if !s.holds.admit(ctx, e, end, population) {
		return false
	}
	if isShortage(of.fault) { // what it could not serve after all is not asked for again at once
		s.shortages.Mark(cell.Offering(), of.fault)
	}
	if errors.Is(of.fault, cloud.ErrUnfit) {
		s.blockers.noteNotStarted(cell, of.fault)
	}
	s.ends.begin(e, cellEnd{of.cause, of.why, events.NewCellLost(e.id, of.why)})
	return true
}
