package cells

import (
	"context"
	"time"
)

// sole waits until a ready cell is surely the only one that runs its pod.
type sole struct {
	table     *table
	lineage   *Lineage
	exclusion *exclusion
	inventory *inventory
}

// prepare waits until nothing else runs the pod of a cell, and the cell no other pod.
func (s *sole) prepare(_ context.Context, e *entry) (ready bool, again time.Duration, err error) {
	// A cell that was launched for its pod was not before nobody else ran the pod.
	if cell := e.cell(); cell.Standby != "" && cell.Pod.UID != "" && !s.exclusion.ensureSole(e) {
		if why, _ := s.table.endingOf(e); why == "" {
			s.inventory.pollSoon()
			return false, time.Second, nil
		}
	}
	if why, _ := s.table.endingOf(e); why == "" && s.lineage.mayRunMore(e) {
		return false, time.Second, nil
	}
	return true, 0, nil
}

// reconnecting keeps ready cells connected.
type reconnecting struct {
	table       *table
	connections *connections
}

// prepare connects to a cell, unless that is stopped, or is to end.
func (s *reconnecting) prepare(ctx context.Context, e *entry) (ready bool, again time.Duration, err error) {
	if why, _ := s.table.endingOf(e); why != "" || e.cell().Stopped {
		return true, 0, nil
	}
	err = s.connections.connect(ctx, e)
	return err == nil, 0, err
}
