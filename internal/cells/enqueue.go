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

// Step adds a cell to the queue of launches once it is prepared and nothing delays its launch. It shows observers what else the cell waits
// for than when they were told of it last.
func (s *enqueuing) Step(ctx context.Context, e *entry) (progress, error) {
	got, err := s.step(ctx, e)
	if err == nil && got.waits() && s.saysOther(e, got.why) {
		s.removals.records.showAgain(e)
	}
	return got, err
}

// saysOther reports whether a cell waited for something else when its last step had run.
func (s *enqueuing) saysOther(e *entry, why string) bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return e.waits != "" && e.waits != why
}

func (s *enqueuing) step(ctx context.Context, e *entry) (progress, error) {
	launching, ending := s.checkQueue(e)
	if launching {
		return await(notAnswered), nil // which may be storing it by now, and gives it back
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
	return await(notAnswered)
}

// waitsForLocked returns what a cell waits for that is its launch's; "" for another. The caller holds table.mu.
func (s *enqueuing) waitsForLocked(e *entry) string {
	if !e.launching {
		return ""
	}
	return cmp.Or(s.calls.Waits(cloud.CallLaunch), s.breakers.blockers.whyLocked(e), notAnswered)
}

// notAnswered is the wait of a cell whose launch is to be sent, or was.
const notAnswered = "the cloud has not answered yet"
