package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// lostInstances ends the cells whose instances the cloud has ended, stopped or taken back.
type lostInstances struct {
	table     *table
	loop      *loop
	inventory *inventory
	listening *listening
	holds     *holds
	lostCells *lostCells
}

// endLost ends those of the cells that are lost by what a snapshot shows, and by what the cloud said
// of the instances that it does not show.
func (s *lostInstances) endLost(ctx context.Context, seen snapshot, f findings, states map[string]cloud.State, faults map[string]error) {
	population := s.holds.population()
	for _, a := range f.absent {
		s.loop.queue.Add(a.cell.ID)
	}
	for _, a := range f.absent {
		if a.due && seen.ended[a.instance()] {
			s.endBy(ctx, s.table.find(a.cell.ID), population, signOf(a, states[a.instance()] == cloud.Gone, faults[a.instance()]))
		}
	}
	for _, cell := range f.stopped {
		id := cell.Instance.ID
		stopped := sign{cause: CauseLost, why: "instance " + id + " was stopped, and not by Kip"}
		if fault := seen.byID[id].Fault; fault != nil {
			stopped = sign{cause: causeOf(fault), why: fmt.Sprintf("the cloud has stopped instance %s: %v", id, fault), fault: fault}
		}
		s.endBy(ctx, s.table.find(cell.ID), population, stopped)
	}
}

// tookBack is why a cell ends whose instance the cloud has announced to take.
const tookBack = "the cloud took its instance back"

// endTakenBack ends a cell that runs a pod, and whose instance the cloud was to take by now.
func (s *lostInstances) endTakenBack(ctx context.Context, e *entry) {
	i := s.inventory.last().byID[e.cell().Instance.ID]
	s.endBy(ctx, e, s.holds.population(), sign{
		cause: CauseInterrupted,
		why:   tookBack,
		sure:  i.State == cloud.Stopped, // of one that is gone the inventory says so
	})
}

// isHeard reports whether a cell was heard a short while ago.
func (s *lostInstances) isHeard(e *entry) bool {
	return e.connection().isHeard(s.loop.clock.Now())
}

// endBy ends a cell for a sign that the cloud has given, unless the cell was heard. One that is gone is nil.
func (s *lostInstances) endBy(ctx context.Context, e *entry, population int, of sign) {
	if e != nil {
		sure := of.sure
		of.heard = func() time.Time { return s.listening.mayHaveHeard(e, sure) }
		s.lostCells.end(ctx, e, population, of)
	}
}

// signOf returns what an instance that is not there any more says of its cell.
func signOf(a absent, sure bool, fault error) sign {
	if fault == nil {
		return sign{cause: CauseLost, why: "instance " + a.instance() + " is no longer in the cloud's list", sure: sure}
	}
	return sign{
		cause: causeOf(fault),
		why:   endedBy(a.instance(), fault),
		sure:  sure,
		fault: fault,
	}
}

// causeOf returns why a cell ends whose instance the cloud has ended.
func causeOf(fault error) Cause {
	switch {
	case isShortage(fault):
		return CauseInterrupted
	case errors.Is(fault, cloud.ErrUnfit):
		return CauseUnfit
	}
	return CauseLost
}

func endedBy(instance string, fault error) string {
	return fmt.Sprintf("the cloud has ended instance %s: %v", instance, fault)
}
