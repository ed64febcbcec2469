package cells

import (
	"context"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/events"
)

// bindWaits report what ready cells wait for before they are given their pods.
type bindWaits struct {
	table   *table
	loop    *loop
	records *records
	events  *reporter
	ends    *cellEnds
	cells   perCell[bindWait] // of their workers
}

// bindWait is what a ready cell waits for.
type bindWait struct {
	reported lastReport // of the disks, routes, plugins, huge pages and GPUs; written under the table's lock
	polls    int        // in a row
	refused  time.Time  // since when the cloud has surely not given it a disk, or its routes
}

// lastReport is the Event that was last reported of what a cell waits for; zero if it waits for nothing.
type lastReport struct{ reason, message string }

// report reports what a ready cell waits for, unless that was the last thing
// that was reported. It is called by the cell's worker alone.
func (s *bindWaits) report(ctx context.Context, e *entry, event events.Event) {
	if s.note(ctx, e, lastReport{event.Reason, event.Message}) {
		s.events.report(e.cell(), event)
	}
}

// clear notes that a ready cell has what it waited for. It is called by the cell's worker alone.
func (s *bindWaits) clear(ctx context.Context, e *entry) { s.note(ctx, e, lastReport{}) }

// note keeps what a ready cell waits for, for WaitsFor, and tells observers of
// it; false if that is known.
func (s *bindWaits) note(ctx context.Context, e *entry, now lastReport) bool {
	state := s.cells.of(e)
	if state.reported == now {
		return false
	}
	s.table.mu.Lock()
	state.reported = now
	s.table.mu.Unlock()
	s.records.notify(ctx, e)
	return true
}

// lastReportedLocked returns what was reported last of what a ready cell waits for; "" for nothing. The caller holds table.mu.
func (s *bindWaits) lastReportedLocked(e *entry) string { return s.cells.of(e).reported.message }

// next is after how long to ask again: what is asked often comes out of the
// budget of those whose disks are free.
func (s *bindWaits) next(e *entry) time.Duration {
	polls := &s.cells.of(e).polls
	*polls++
	return s.loop.random.After(*polls, diskPoll, longestDiskPoll)
}

// polls returns how often in a row next was asked for a cell.
func (s *bindWaits) polls(e *entry) int { return s.cells.of(e).polls }

// restart begins the polls and the time of a refusal anew: the cell has what it waited for, and what comes next is another matter.
func (s *bindWaits) restart(e *entry) {
	s.forgetRefusal(e)
	s.cells.of(e).polls = 0
}

// forgetRefusal notes that the cloud has not surely refused what a cell waits for.
func (s *bindWaits) forgetRefusal(e *entry) { s.cells.of(e).refused = time.Time{} }

// giveUpIfLate ends a cell that has waited for so long for what the cloud surely does not give to it, and reports whether it did.
// Nobody else may have the machine meanwhile, and it is paid for; the pod gets another after a
// pause, which is longer each time. It is called by the cell's worker alone.
func (s *bindWaits) giveUpIfLate(
	e *entry, cause Cause, event func(cell, why string) events.Event, what string, refusal error, after time.Duration,
) bool {
	refused := &s.cells.of(e).refused
	if refused.IsZero() {
		*refused = s.loop.clock.Now()
	}
	if s.loop.leftTo(e, *refused, after) > 0 {
		return false
	}
	why := fmt.Sprintf("%s in %s: %v", what, after, refusal)
	s.ends.begin(e, cellEnd{cause, why, event(e.id, why)})
	return true
}
