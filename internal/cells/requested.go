package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/events"
)

// requesting hands cells to be launched.
type requesting struct {
	table        *table
	loop         *loop
	events       *reporter
	lineage      *lineage
	inventory    *inventory
	exclusion    *exclusion
	rights       *rights
	blockers     *blockers
	launches     *launchQueue
	terminations *terminations
}

// Step hands a cell to be launched with others, as soon as nobody else can be
// running its pod.
func (s *requesting) Step(ctx context.Context, e *entry) (time.Duration, error) {
	s.table.mu.Lock()
	removed := e.launching && e.ending != "" && s.launches.remove(e)
	if removed {
		e.launching = false
	}
	launching, why := e.launching, e.ending
	s.table.mu.Unlock()
	if removed {
		s.rights.giveTurnBack(e)
	}
	switch {
	case launching:
		return 0, nil // it waits, or is its group's, which may be storing the launch, and gives it back
	case why != "":
		return 0, s.terminations.gone(ctx, e, why)
	}
	if wait := e.resolving.wait(s.loop.clock.Now()); wait > 0 {
		return wait, nil
	}
	if why, sure := s.lineage.behind(); why != "" && sure {
		if e.unknown.is(why, s.loop.clock.Now()) {
			s.events.report(e.cell(), events.NewStoreBehind(why))
		}
		return idlePoll, nil
	}
	if !s.exclusion.nobodyElseRuns(e) {
		s.inventory.pollSoon()
		return time.Second, nil
	}
	if wait := s.rights.launchesPaused(e); wait > 0 {
		return wait, nil
	}
	next, err := toLaunchOf(e)
	if err != nil {
		return 0, err
	}
	if wait := s.blockers.keptBack(e); wait > 0 {
		return wait, nil
	}
	wait := s.rights.looks(e)
	s.table.mu.Lock()
	e.launching = wait == 0 && e.ending == "" // one that is to end is queued again
	goes := e.launching
	if goes {
		s.launches.add(next)
	}
	s.table.mu.Unlock()
	if !goes {
		s.rights.giveTurnBack(e)
	}
	return wait, nil
}
