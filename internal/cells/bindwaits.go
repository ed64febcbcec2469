package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/events"
)

// bindWaits keep the patience with ready cells that wait for what they need before their pods: since when each waits, how often it has
// checked, and what its pod's owner was told. A preparation says what a cell waits for, and for how long it may. It keeps none of that
// itself.
type bindWaits struct {
	table   *table
	loop    *loop
	records *records
	events  *reporter
	ends    *cellEnds
	cells   perCell[waitState] // of their workers
}

// waitState is how long a ready cell has waited. It begins anew when another preparation waits.
type waitState struct {
	by       preparation // which waits; nil if none does
	since    time.Time   // when this wait began; a timeout that begins or ends begins it anew
	bounded  bool        // since is of a wait with a timeout
	polls    int         // in a row
	reported lastReport  // written under the table's lock; it stays until over
}

// lastReport is the Event that was last reported of what a cell waits for; zero if it waits for nothing.
type lastReport struct{ reason, message string }

// bindWait is what a preparation has a ready cell wait for.
type bindWait struct {
	by       preparation
	progress progress      // what the cell waits for, and after how long the preparation checks again
	longest  time.Duration // it waits twice as long each time, up to this, with jitter; 0 if always as progress says
	failure  error         // is returned in place of progress, so that the step fails; nil for none
	event    events.Event  // for the owner of the pod; zero for none
	silence  time.Duration // how long the cell may wait before the owner is told
	timeout  time.Duration // how long it may wait before it ends, without a break; 0 for ever
	end      cellEnd       // how it ends then
}

// wait has a ready cell wait, and reports what for. It ends a cell that has waited for too long: nobody else may have the machine
// meanwhile, and it is paid for. Its pod gets another after a pause, which is longer each time. The cell's worker alone calls it.
func (s *bindWaits) wait(ctx context.Context, e *entry, w bindWait) (progress, error) {
	now, state := s.loop.clock.Now(), s.cells.of(e)
	if state.by != w.by {
		s.restart(e)
		state.by, state.since = w.by, now
	}
	if bounded := w.timeout > 0; state.bounded != bounded {
		state.since, state.bounded = now, bounded
	}
	left := time.Duration(0)
	if w.timeout > 0 {
		if left = s.loop.leftTo(e, state.since, w.timeout); left <= 0 {
			s.ends.begin(e, w.end)
			return leave, nil
		}
	}
	if w.event != (events.Event{}) && now.Sub(state.since) >= w.silence {
		s.report(ctx, e, w.event)
	}
	if w.failure != nil {
		return progress{}, w.failure
	}
	if w.longest > 0 {
		state.polls++
		w.progress.again = s.loop.random.After(state.polls, w.progress.again, w.longest)
	}
	return w.progress.atMost(left), nil
}

// polls returns how often in a row a cell has waited that waits twice as long each time.
func (s *bindWaits) polls(e *entry) int { return s.cells.of(e).polls }

// restart begins the time and the polls of a wait anew: the cell waits for something else from now on. What was reported stays.
func (s *bindWaits) restart(e *entry) {
	state := s.cells.of(e)
	state.by, state.since, state.bounded, state.polls = nil, time.Time{}, false, 0
}

// over notes that a ready cell has what it waited for. The cell's worker alone calls it.
func (s *bindWaits) over(ctx context.Context, e *entry) {
	s.restart(e)
	s.note(ctx, e, lastReport{})
}

// report tells the owner of its pod what a ready cell waits for, unless that was told last. Time and polls go on. The cell's worker alone
// calls it.
func (s *bindWaits) report(ctx context.Context, e *entry, event events.Event) {
	if s.note(ctx, e, lastReport{event.Reason, event.Message}) {
		s.events.report(e.cell(), event)
	}
}

// note keeps what a ready cell waits for, for WaitsFor, and tells observers of it. It returns false if that is known.
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
