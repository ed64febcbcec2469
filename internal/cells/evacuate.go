package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"k8s.io/utils/clock"
)

// evacuating moves pods away from instances that the cloud takes back, and ends their cells.
type evacuating struct {
	clock         clock.PassiveClock
	observers     *observers
	ends          *cellEnds
	holds         *holds
	lost          *lostInstances
	interruptions *interruptions
	reported      perCell[time.Time] // the notice that observers were told of; of the cell's worker
}

var _ preparation = (*evacuating)(nil)

// endUnbound ends a cell that is not bound if the cloud takes its instance back, and reports whether it does.
func (s *evacuating) endUnbound(e *entry) bool {
	if e.cell().Interrupted.IsZero() {
		return false
	}
	s.ends.begin(e, cellEnd{CauseInterrupted, tookBack, events.NewCellLost(e.id, tookBack)})
	return true
}

// moveBound has the pod of a bound cell move away if the cloud takes the cell's instance back. When the time of the notice has come it ends
// the cell, or forgets a notice that was not true. It returns after how long to do so again, 0 where there is no notice.
func (s *evacuating) moveBound(ctx context.Context, e *entry) (again time.Duration) {
	cell, reported := e.cell(), s.reported.of(e)
	if cell.Interrupted.IsZero() {
		if !reported.IsZero() { // it was called off, or did not come
			*reported = time.Time{}
			s.observers.CellInterrupted(*cell)
		}
		return 0
	}
	left := cell.Interrupted.Sub(s.clock.Now())
	switch {
	case left <= -cell.noticeOver() && s.lost.isHeard(e):
		if s.interruptions.forget(ctx, e) {
			return 0
		}
		return silentPoll
	case left <= 0:
		s.lost.endTakenBack(ctx, e)
		return silentPoll
	}
	if !reported.Equal(cell.Interrupted) {
		if !s.admitMove(ctx, e) {
			return min(left, idlePoll) // the guard may admit it then
		}
		*reported = cell.Interrupted
		s.observers.CellInterrupted(*cell)
	}
	return left
}

// prepare has a ready cell leave that ends by its notice.
func (s *evacuating) prepare(_ context.Context, e *entry) (progress, error) {
	if s.endUnbound(e) {
		return leave, nil
	}
	return done, nil
}

// admitMove reports whether the pod may be moved away before the instance is taken: it asks the guard. That a
// spot instance is taken is what it was bought for, hundreds at a time: the notice is
// worth most then, and an eviction leaves no pod without another. Capacity that was bought for a fixed
// term is treated alike. That others are taken is rare: they count as those do whose end may be a mistake.
func (s *evacuating) admitMove(ctx context.Context, e *entry) bool {
	cell := e.cell()
	if cell.Offering().CapacityType() == cloud.Spot || cell.Certain {
		return true
	}
	end := unrequested(cell, "the cloud is about to take its instance back")
	return s.holds.admit(ctx, e, end, s.holds.population())
}

// heldBackLocked returns why the end of a cell is held back; "" if it is not. The caller holds table.mu.
func (s *evacuating) heldBackLocked(e *entry) string {
	if why := s.holds.whyLocked(e); why != "" {
		return heldBack + why
	}
	return ""
}

// heldBack is what begins the wait of a cell that the guard does not let end.
const heldBack = "its end is held back: "
