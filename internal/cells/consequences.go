package cells

import (
	"context"

	"github.com/elotl/kip/internal/cloud"
)

// consequences acts on what follows from a comparison of the cloud's list with the cells.
type consequences struct {
	loop      *loop
	observers *observers
	orphans   *orphanTerminations
	tagging   *tagging
	boosting  *boosting
	lost      *lostInstances
	owner     string
}

// shown acts on what a snapshot shows.
func (s *consequences) shown(seen snapshot, f findings) {
	s.orphans.forget(seen)
	for _, id := range f.wake {
		s.loop.queue.Add(id)
	}
	s.tagging.tagUntagged(seen)
	s.boosting.unboostAll()
}

// described acts on what the cloud said of the instances that a snapshot does not show, and
// ends those without a cell.
func (s *consequences) described(ctx context.Context, seen snapshot, f findings, states map[string]cloud.State, faults map[string]error) {
	for _, id := range seen.hides {
		s.loop.log.Error("the cloud's list lacks a running instance, perhaps because its tags were removed; "+
			"Kip still uses the list for all other instances", "instance", id, "owner", s.owner)
	}
	s.lost.endLost(ctx, seen, f, states, faults)
	for range f.newOrphans {
		s.observers.OrphanFound()
	}
	for _, i := range f.dueOrphans {
		s.orphans.terminate(i)
	}
}
