package cells

import (
	"context"

	"k8s.io/utils/clock"
)

// enqueuing adds cells to the queue of those that wait for a launch.
type enqueuing struct {
	table        *table
	loop         *loop
	pauses       launchPauses
	launches     *launchQueue
	removals     *removals
	preparations preparations
}

var _ = []preparation{(*resolveRetries)(nil), (*exclusiveLaunch)(nil)}

// Step adds a cell to the queue of launches once it is prepared and nothing delays its launch.
func (s *enqueuing) Step(ctx context.Context, e *entry) (progress, error) {
	launching, ending := s.checkQueue(e)
	if launching {
		return await("its launch"), nil // which may be storing it by now, and gives it back
	}
	if ending != "" {
		return done, s.removals.remove(ctx, e, ending)
	}
	next, err := queuedCellOf(e)
	if err != nil {
		return progress{}, err
	}
	if got, err := s.preparations.prepare(ctx, e); err != nil || got != done {
		return got, err
	}
	return s.add(next), nil
}

// checkQueue returns whether a cell waits in the queue or is its launch's, and why it is to end, if it is. It takes a cell that is to
// end out of the queue.
func (s *enqueuing) checkQueue(e *entry) (launching bool, ending string) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if e.launching && e.ending != "" && s.launches.remove(e) {
		e.giveBackLocked()
	}
	if !e.launching {
		s.pauses.rights.passProbeLocked(e)
	}
	return e.launching, e.ending
}

// add queues a cell for launch, or reports why it must wait. Under the same lock it hands the cell to its launch and makes it the
// probe if one is due, so two cells never become the probe.
func (s *enqueuing) add(next queuedCell) progress {
	s.table.mu.Lock()
	if next.e.ending != "" {
		s.table.mu.Unlock()
		return anew
	}
	got, report := s.pauses.passLocked(next.e)
	if got == done {
		next.e.giveToLaunchLocked()
		s.launches.add(next)
	}
	s.table.mu.Unlock()
	if got != done {
		report()
		return got
	}
	return await("its launch")
}

// resolveRetries have cells wait whose launch could not be resolved, until the next try.
type resolveRetries struct{ clock clock.PassiveClock }

func (s *resolveRetries) prepare(_ context.Context, e *entry) (progress, error) {
	if wait := e.resolving.wait(s.clock.Now()); wait > 0 {
		return waitFor("another try to resolve its launch", wait), nil
	}
	return done, nil
}
