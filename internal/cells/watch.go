package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
)

// watching keeps bound cells connected until their pods let them go.
type watching struct {
	loop        *loop
	records     *records
	inventory   *inventory
	connections *connections
	evacuating  *evacuating
	releases    *releases
}

// Step keeps a bound cell connected until its pod lets it go.
func (s *watching) Step(ctx context.Context, e *entry) (progress, error) {
	why, cause, keepUntil := s.releases.endAndKeep(e)
	if why == "" {
		left := s.evacuating.moveBound(ctx, e)
		got, err := s.connections.connect(ctx, e)
		switch {
		case err != nil || !got.isDone():
			return got.atMost(left), err
		case !e.session().connected():
			s.inventory.pollSoon() // is the machine still there?
			return waitFor(notConnected, silentPoll), nil
		}
		return await("its pod has not ended").atMost(left), nil
	}
	return done, s.records.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.PodEnded, cell.Cause, cell.KeepUntil = why, cause == CausePodEnded, cause, keepUntil
		cell.step(apiv1.StepEnded, s.loop.clock.Now())
		return cell.enter(apiv1.Draining)
	})
}

// waitsForLocked returns why the end of a bound cell is held back; "" if it is not. The caller holds table.mu.
func (s *watching) waitsForLocked(e *entry) string { return s.evacuating.heldBackLocked(e) }
