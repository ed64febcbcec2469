package cells

import (
	"context"
	"time"
)

// exclusiveBind waits until a ready cell is surely the only one that runs its pod.
type exclusiveBind struct {
	generation     *StoreGeneration
	exclusionWaits *exclusionWaits
	inventory      *inventory
}

var _ preparation = (*exclusiveBind)(nil)

// prepare waits until nothing else runs the pod of a cell, and the cell no other pod.
func (s *exclusiveBind) prepare(_ context.Context, e *entry) (progress, error) {
	cell := e.cell()
	// A cell that was launched for its pod was not before nobody else ran the pod.
	if cell.Standby != "" && cell.Pod.UID != "" {
		if why := s.exclusionWaits.ensureExclusive(e); why != "" {
			s.inventory.pollSoon()
			return waitFor(why, time.Second), nil
		}
	}
	if s.generation.mayRunMore(e) {
		return waitFor(s.generation.Behind(), time.Second), nil
	}
	return done, nil
}
