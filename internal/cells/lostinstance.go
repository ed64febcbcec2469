package cells

import (
	"context"
	"errors"
	"fmt"

	"github.com/elotl/kip/internal/cloud"
)

// lostInstances ends the cells whose instances the cloud has ended, or stopped.
type lostInstances struct {
	table     *table
	loop      *loop
	listening *listening
	holds     *holds
	losses    *losses
}

// lose ends those of the cells that are lost by what a snapshot shows, and by what the cloud said
// of the instances that it does not show.
func (s *lostInstances) lose(ctx context.Context, seen snapshot, f findings, states map[string]cloud.State, faults map[string]error) {
	population := s.holds.population()
	for _, a := range f.absent {
		s.loop.queue.Add(a.cell.ID)
	}
	for _, a := range f.absent {
		if a.due && seen.ended[a.instance()] {
			s.loseTo(ctx, a.cell.ID, population, signOf(a, states[a.instance()] == cloud.Gone, faults[a.instance()]))
		}
	}
	for _, cell := range f.stopped {
		id := cell.Instance.ID
		stopped := sign{cause: CauseLost, why: "instance " + id + " was stopped, and not by Kip"}
		if fault := seen.byID[id].Fault; fault != nil {
			stopped = sign{cause: causeOf(fault), why: fmt.Sprintf("the cloud has stopped instance %s: %v", id, fault), fault: fault}
		}
		s.loseTo(ctx, cell.ID, population, stopped)
	}
}

// loseTo ends a cell for a sign that the cloud has given, unless the cell was heard.
func (s *lostInstances) loseTo(ctx context.Context, id string, population int, seen sign) {
	s.table.mu.Lock()
	e := s.table.byID[id]
	s.table.mu.Unlock()
	if e != nil {
		seen.heard = s.listening.hearing(s.table, e, seen.sure)
		s.losses.lose(ctx, e, population, seen)
	}
}

// signOf is what an instance that is not there any more says of its cell.
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

// causeOf is why a cell ends whose instance the cloud has ended.
func causeOf(fault error) Cause {
	switch {
	case lacks(fault):
		return CauseInterrupted
	case errors.Is(fault, cloud.ErrUnfit):
		return CauseUnfit
	}
	return CauseLost
}

func endedBy(instance string, fault error) string {
	return fmt.Sprintf("the cloud has ended instance %s: %v", instance, fault)
}
