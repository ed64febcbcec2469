package cells

import (
	"cmp"
	"context"
	"time"
)

// terminating has the instances of cells terminated, and then removes their records.
type terminating struct {
	inventory    *inventory
	terminations *terminations
	connections  *connections
	routes       *routes
	abandoned    *abandoned
	removals     *removals
}

// Step has the cloud terminate the instance until it has accepted, then
// waits until a snapshot of the cloud, begun after that, no longer shows it. Only
// then may another cell run the pod.
func (s *terminating) Step(ctx context.Context, e *entry) (progress, error) {
	e.async.drop(removesRoutes)
	s.connections.disconnect(e)
	seen := s.inventory.last()
	cell := e.cell()
	if cell.Instance == nil {
		return s.abandoned.adoptOrRemove(ctx, e, seen)
	}
	t, again := s.terminations.terminate(guardEnd(cell, cell.Reason), e, seen)
	accepted := !t.accepted.IsZero()
	if !t.sending && accepted && seen.began.After(t.accepted) && seen.ended[cell.Instance.ID] {
		if got, err := s.routes.unrouteGone(ctx, e); err != nil || !got.isDone() {
			return got, err
		}
		return done, s.removals.remove(ctx, e, e.cell().Reason)
	}
	if !accepted {
		return waitFor(notEnded, again), nil
	}
	s.inventory.pollSoon()
	if _, err := s.routes.unrouteEnding(ctx, e); err != nil {
		return progress{}, err
	}
	return waitFor(notEnded, time.Second), nil
}

// notEnded is the wait of a cell whose instance ends.
const notEnded = "the cloud has not ended it yet"

// waitsForLocked returns what keeps the call from being sent that terminates a cell's instance, or removes its routes. The caller holds
// table.mu.
func (s *terminating) waitsForLocked(e *entry) string {
	call := ""
	if i := e.cell().Instance; i != nil {
		call = s.terminations.waitsFor(i.ID)
	}
	return cmp.Or(call, s.routes.waitsForLocked(e))
}
