package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
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

// actOnNotice does what the notice of a cell asks for. It returns how long is left until the
// instance is lost, 0 where there is no notice, and whether the cell ends now.
func (s *evacuating) actOnNotice(ctx context.Context, e *entry) (left time.Duration, ends bool) {
	cell, reported := e.cell(), s.reported.of(e)
	if cell.Interrupted.IsZero() {
		if !reported.IsZero() { // it was called off, or did not come
			*reported = time.Time{}
			s.observers.CellInterrupted(*cell)
		}
		return 0, false
	}
	left = cell.Interrupted.Sub(s.clock.Now())
	switch {
	case cell.Phase != apiv1.Bound:
		s.ends.begin(e, cellEnd{CauseInterrupted, tookBack, events.NewCellLost(e.id, tookBack)})
		return 0, true
	case left <= -cell.noticeOver() && s.lost.isHeard(e):
		if s.interruptions.forget(ctx, e) {
			return 0, false
		}
		return silentPoll, true
	case left <= 0:
		s.lost.loseTakenBack(ctx, e)
		return silentPoll, true
	}
	if !reported.Equal(cell.Interrupted) {
		if !s.admitMove(ctx, e) {
			return min(left, idlePoll), true
		}
		*reported = cell.Interrupted
		s.observers.CellInterrupted(*cell)
	}
	return left, true
}

// prepare has a ready cell leave that ends by its notice.
func (s *evacuating) prepare(ctx context.Context, e *entry) (progress, error) {
	if _, ends := s.actOnNotice(ctx, e); ends {
		return leave, nil
	}
	return done, nil
}

// admitMove reports whether the pod may be moved away before the instance is taken: it asks the guard. That a
// spot instance is taken is what it was bought for, hundreds at a time: the notice is
// worth most then, and an eviction leaves no pod without another. So it is with what was bought
// for a time that ends. That others are taken is rare: they count as those do whose end may be a mistake.
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
