package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
)

// watching keeps bound cells connected until their pods let them go.
type watching struct {
	table       *table
	loop        *loop
	records     *records
	inventory   *inventory
	connections *connections
	evacuating  *evacuating
}

// Step keeps a bound cell connected until its pod lets it go.
func (s *watching) Step(ctx context.Context, e *entry) (progress, error) {
	why, cause := s.table.endingOf(e)
	if why == "" {
		left, _ := s.evacuating.actOnNotice(ctx, e)
		got, err := s.connections.connect(ctx, e)
		switch {
		case err != nil || got != done:
			return got.atMost(left), err
		case !e.session.connected():
			s.inventory.pollSoon() // is the machine still there?
			return waitFor("a connection to its agent", silentPoll), nil
		}
		return await("its pod to end").atMost(left), nil
	}
	until, _ := s.table.keepingOf(e)
	return done, s.records.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.PodEnded, cell.Cause, cell.KeepUntil = why, cause == CausePodEnded, cause, until
		cell.step(apiv1.StepEnded, s.loop.clock.Now())
		return cell.enter(apiv1.Draining)
	})
}
