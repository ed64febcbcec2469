package cells

import apiv1 "github.com/elotl/kip/api/v1"

// adoptions make stored records the current ones of their cells.
type adoptions struct {
	table        *table
	budgets      *budgets
	pools        *pools
	terminations *terminations
}

// adoptLocked makes a stored record the current one of its cell. The caller holds e.writing.
func (s *adoptions) adoptLocked(e *entry, cell *Cell) {
	gone := cell.Phase == apiv1.Gone
	s.table.mu.Lock()
	s.budgets.noteStoredLocked(e, cell)
	s.table.indexLocked(e, cell.Instance)
	s.table.mu.Unlock()
	if gone && cell.Pod.UID == "" {
		cell.Pod = e.pod // it was promised to it
	}
	e.current.Store(cell)
	if gone {
		s.buryLocked(e)
	}
	if cell.Standby != "" {
		s.pools.refillSoon()
	}
}

// buryLocked forgets a cell that has no record any more. The caller holds e.writing.
func (s *adoptions) buryLocked(e *entry) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	delete(s.table.byID, e.id)
	s.table.entries.Delete(e.id)
	s.table.indexLocked(e, nil)
	s.table.unreserveLocked(e)
	s.pools.noteGone(*e.cell())
	if i := e.cell().Instance; i != nil {
		s.terminations.forget(i.ID)
	}
}
