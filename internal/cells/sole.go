package cells

import (
	"context"
	"time"
)

// sole waits until a ready cell is surely the only one that runs its pod.
type sole struct {
	generation *StoreGeneration
	excluding  *excluding
	inventory  *inventory
}

// prepare waits until nothing else runs the pod of a cell, and the cell no other pod.
func (s *sole) prepare(_ context.Context, e *entry) (progress, error) {
	cell := e.cell()
	// A cell that was launched for its pod was not before nobody else ran the pod.
	isSole := cell.Standby == "" || cell.Pod.UID == ""
	if !isSole {
		isSole, _ = s.excluding.ensureSole(e)
	}
	switch {
	case !isSole:
		s.inventory.pollSoon()
		return waitFor(time.Second), nil
	case s.generation.mayRunMore(e):
		return waitFor(time.Second), nil
	}
	return done, nil
}
