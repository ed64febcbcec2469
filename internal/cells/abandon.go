package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// abandoned finds out whether cells whose launches were given up have an instance.
type abandoned struct {
	loop        *loop
	records     *records
	inventory   *inventory
	removals    *removals
	listLag     time.Duration
	lackedSince perCell[time.Time] // since when complete snapshots show no instance; of its worker
}

// adoptOrRemove gives a cell whose launch was given up its instance, if a list shows one. It removes the cell
// when two complete lists, which show all others, lack the instance: a list may lag behind a launch, and one
// answer may be older than the last.
func (s *abandoned) adoptOrRemove(ctx context.Context, e *entry, seen snapshot) (progress, error) {
	if id, ok := seen.byCell[e.cell().JoinID()]; ok {
		found := seen.byID[id]
		return done, s.records.save(ctx, e, func(cell *Cell) error { cell.setInstance(found, s.loop.clock.Now()); return nil })
	}
	cell := e.cell()
	if !seen.lacks && seen.covers(cell.Offering().Zone) && seen.began.Sub(cell.StepTime(apiv1.StepEnded)) >= s.listLag+time.Second {
		first := s.lackedSince.of(e)
		switch {
		case first.IsZero():
			*first = seen.began
		case seen.began.After(*first):
			return done, s.removals.remove(ctx, e, cell.Reason)
		}
	}
	s.inventory.pollSoon()
	return waitFor("Kip does not know yet whether it has an instance", time.Second), nil
}
