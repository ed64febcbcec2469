package cells

import (
	"cmp"
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
)

// removals removes the records of cells that are gone.
type removals struct {
	table       *table
	loop        *loop
	records     *records
	connections *connections
}

// remove removes the record of a cell that has no instance.
func (s *removals) remove(ctx context.Context, e *entry, why string) error {
	e.async.drop("")
	s.connections.disconnect(e)
	_, cause := s.table.ending(e)
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.Reason, cell.Token, cell.Cause = why, "", cmp.Or(cell.Cause, cause, CauseOther)
		cell.step(apiv1.StepTerminated, s.loop.clock.Now())
		return cell.enter(apiv1.Gone)
	})
}
