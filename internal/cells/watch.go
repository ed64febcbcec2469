package cells

import (
	"context"
	"time"

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
func (s *watching) Step(ctx context.Context, e *entry) (time.Duration, error) {
	why, cause := s.table.endingOf(e)
	if why == "" {
		left, _ := s.evacuating.actOnNotice(ctx, e)
		if err := s.connections.connect(ctx, e); err != nil {
			return left, err
		}
		if !e.session.connected() {
			s.inventory.pollSoon() // is the machine still there?
			return silentPoll, nil
		}
		return left, nil
	}
	until, _ := s.table.keepingOf(e)
	return 0, s.records.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.PodEnded, cell.Cause, cell.KeepUntil = why, cause == CausePodEnded, cause, until
		cell.step(apiv1.StepEnded, s.loop.clock.Now())
		return cell.enter(apiv1.Draining)
	})
}
