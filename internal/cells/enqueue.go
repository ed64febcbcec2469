package cells

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// enqueuing adds cells to the queue of those that wait for a launch.
type enqueuing struct {
	table        *table
	rights       *rights
	launches     *launchQueue
	removals     *removals
	preparations preparations
}

var _ = []preparation{(*resolveRetries)(nil), (*exclusiveLaunch)(nil), (*rights)(nil), (*blockers)(nil)}

// Step adds a cell to the queue of launches once it is prepared.
func (s *enqueuing) Step(ctx context.Context, e *entry) (time.Duration, error) {
	s.table.mu.Lock()
	if e.launching && e.ending != "" && s.launches.remove(e) {
		e.giveBackLocked()
	}
	launching, why := e.launching, e.ending
	s.table.mu.Unlock()
	if launching {
		return 0, nil // it waits, or is its group's, which may be storing the launch, and gives it back
	}
	s.rights.passProbe(e)
	if why != "" {
		return 0, s.removals.remove(ctx, e, why)
	}
	next, err := toLaunchOf(e)
	if err != nil {
		return 0, err
	}
	got, err := s.preparations.prepare(ctx, e)
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if err == nil && got.state == isDone && e.ending == "" { // one that is to end is queued again
		e.giveToGroupLocked()
		s.launches.add(next)
	} else {
		e.giveBackLocked()
	}
	return got.again, err
}

// resolveRetries have cells wait whose launch could not be resolved, until the next try.
type resolveRetries struct{ clock clock.PassiveClock }

func (s *resolveRetries) prepare(_ context.Context, e *entry) (progress, error) {
	if wait := e.resolving.wait(s.clock.Now()); wait > 0 {
		return waitFor(wait), nil
	}
	return done, nil
}
