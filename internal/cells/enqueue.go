package cells

import (
	"cmp"
	"context"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// enqueuing adds cells to the queue of those that wait for a launch.
type enqueuing struct {
	table        *table
	calls        *pipe.Pipe
	breakers     launchBreakers
	launches     *launchQueue
	removals     *removals
	preparations preparations
}

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
	if got, err := s.preparations.prepare(ctx, e); err != nil || !got.isDone() {
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
		s.breakers.rights.passProbeLocked(e)
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
	got, report := s.breakers.passLocked(next.e)
	if got.isDone() {
		next.e.giveToLaunchLocked()
		s.launches.add(next)
	}
	s.table.mu.Unlock()
	if !got.isDone() {
		report()
		return got
	}
	return await("its launch")
}

// waitsForLocked returns what a cell waits for that is to be launched. The caller holds table.mu.
func (s *enqueuing) waitsForLocked(e *entry) string {
	if why := s.preparations.waitsForLocked(e); why != "" {
		return why
	}
	if e.launching {
		if why := s.calls.Waits(cloud.CallLaunch); why != "" {
			return why
		}
	}
	return cmp.Or(s.breakers.blockers.whyLocked(e), notAnswered)
}

// notAnswered is the wait of a cell whose launch is to be sent, or was.
const notAnswered = "the cloud has not answered yet"
