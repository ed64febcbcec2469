package cells

import (
	"context"
	"time"
)

// bindDuplicates waits until a ready cell is surely the only one that runs its pod.
type bindDuplicates struct {
	generation     *StoreGeneration
	duplicateWaits *duplicateWaits
	inventory      *inventory
}

var _ preparation = (*bindDuplicates)(nil)

// prepare waits until nothing else runs the pod of a cell, and the cell no other pod.
func (s *bindDuplicates) prepare(_ context.Context, e *entry) (progress, error) {
	cell := e.cell()
	// A cell that was launched for its pod was not before nobody else ran the pod.
	if cell.Standby != "" && cell.Pod.UID != "" {
		if why := s.duplicateWaits.endDuplicates(e); why != "" {
			s.inventory.pollSoon()
			return waitFor(why, time.Second), nil
		}
	}
	if s.generation.mayRunMore(e) {
		return waitFor(s.generation.Behind(), time.Second), nil
	}
	return done, nil
}
