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
	exclusive := cell.Standby == "" || cell.Pod.UID == ""
	if !exclusive {
		exclusive, _ = s.exclusionWaits.ensureExclusive(e)
	}
	switch {
	case !exclusive:
		s.inventory.pollSoon()
		return waitFor("a list without another instance for its pod", time.Second), nil
	case s.generation.mayRunMore(e):
		return waitFor("the store to know all instances", time.Second), nil
	}
	return done, nil
}

// waitsForLocked returns why a ready cell may run more than its record says. The caller holds table.mu.
func (s *exclusiveBind) waitsForLocked(e *entry) string {
	if !s.generation.mayRunMore(e) {
		return ""
	}
	why, _ := s.generation.whyBehind() // Kip tells a kubelet nothing before
	return why
}
