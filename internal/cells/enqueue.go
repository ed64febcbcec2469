package cells

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// enqueuing adds cells to the queue of those that wait for a launch.
type enqueuing struct {
	table    *table
	delays   *launchDelays
	blockers *blockers
	rights   *rights
	launches *launchQueue
	removals *removals
}

// Step adds a cell to the queue of launches, as soon as nobody else can be
// running its pod.
func (s *enqueuing) Step(ctx context.Context, e *entry) (time.Duration, error) {
	s.table.mu.Lock()
	removed := e.launching && e.ending != "" && s.launches.remove(e)
	if removed {
		e.giveBack()
	}
	launching, why := e.launching, e.ending
	s.table.mu.Unlock()
	switch {
	case launching:
		return 0, nil // it waits, or is its group's, which may be storing the launch, and gives it back
	case why != "":
		s.rights.passProbe(e)
		return 0, s.removals.remove(ctx, e, why)
	}
	s.rights.passProbe(e)
	if wait := s.delays.delay(e); wait > 0 {
		return wait, nil
	}
	next, err := toLaunchOf(e)
	if err != nil {
		return 0, err
	}
	wait := s.rights.probeOrDelay(e)
	if wait == 0 {
		wait = s.blockers.startOrDelay(e)
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if wait == 0 && e.ending == "" { // one that is to end is queued again
		e.giveToGroup()
		s.launches.add(next)
	} else {
		e.giveBack()
	}
	return wait, nil
}

// launchDelays delay cells that may not be launched yet.
type launchDelays struct {
	clock     clock.PassiveClock
	excluding *excluding
}

// delay returns how long a cell has to wait, and reports why; 0 if it may be launched.
func (s *launchDelays) delay(e *entry) time.Duration {
	if wait := e.resolving.wait(s.clock.Now()); wait > 0 {
		return wait
	}
	return s.excluding.delayLaunch(e)
}
