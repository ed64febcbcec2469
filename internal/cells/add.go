package cells

import (
	"context"
	"fmt"

	"github.com/elotl/kip/internal/store"
)

// additions store the records of new cells.
type additions struct {
	table     *table
	loop      *loop
	ends      *cellEnds
	store     *store.Store
	observers *observers
}

// add writes the record of a new cell, which is reserved, and starts its life.
func (s *additions) add(ctx context.Context, e *entry) error {
	lockWriting(ctx, e)
	defer e.writing.Unlock()
	cell := e.cell()
	revision, err := s.store.Put(ctx, keyPrefix+e.id, cell, 0)
	s.table.mu.Lock()
	if store.NotWritten(err) {
		s.table.unreserveLocked(e)
		s.table.mu.Unlock()
		if refusedWrite(err) {
			s.loop.fail(err)
		}
		return fmt.Errorf("request a cell for pod %s: %w", cell.Pod, err)
	}
	s.table.enterLocked(e)
	if err != nil {
		// The record may be stored all the same. The cell's worker finds out.
		e.unsure = cell
		s.ends.beginLocked(e, cellEnd{cause: CauseOther, evidence: "the store did not answer"})
		s.table.mu.Unlock()
		return fmt.Errorf("request a cell for pod %s: %w", cell.Pod, err)
	}
	e.revision = revision
	s.table.mu.Unlock()
	s.observers.CellChanged(*cell)
	s.loop.queue.Add(e.id)
	return nil
}
