package cells

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// standbys gives standby cells to pods.
type standbys struct {
	table     *table
	loop      *loop
	records   *records
	pools     *pools
	recipe    *recipe
	nodeNames *nodeNames
	lineage   *Lineage
	listening *listening
	tagging   *tagging
	reserved  int64 // bytes of memory that are the cell's own
}

// fits says that a standby cell is as good for the request as a new one.
func (s *standbys) fits(r Request, cell *Cell) bool {
	best, has := r.Offerings[0], cell.Offering()
	if lacksRoom(cell.Room, r.Needs, s.reserved) {
		return false
	}
	if r.Special || has.InstanceType != best.InstanceType || has.CapacityType() != best.CapacityType() || has.DiskBytes != best.DiskBytes {
		return false
	}
	return slices.ContainsFunc(r.Offerings, func(o Offering) bool { return keyOf(o) == keyOf(has) })
}

// wouldTake returns the standby cell that a request would be given now.
func (s *standbys) wouldTake(r Request) (Cell, bool) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, _ := s.find(r)
	if e == nil {
		return Cell{}, false
	}
	return *e.cell(), true
}

// find returns the standby cell that fits a request best: one that is ready,
// else the one that will be soonest; nil where there is none. connecting says that a better
// one may be connected in a moment. The caller holds table.mu.
func (s *standbys) find(r Request) (best *entry, connecting bool) {
	if s.pools.none() {
		return nil, false
	}
	template := s.recipe.template(s.recipe.digest())
	rank := func(cell *Cell) int {
		switch {
		case cell.Phase == apiv1.Ready && !cell.Stopped && s.nodeNames.of(cell) == r.Node:
			return 3
		case cell.Phase == apiv1.Ready && !cell.Stopped:
			return 2 // its kubelet has to be started again
		case cell.Phase == apiv1.Ready && cell.Instance.State == cloud.Stopped:
			return 1 // one that is stopping yet cannot be started
		}
		return 0 // the pod would wait for a boot that may fail
	}
	for _, e := range s.table.standby {
		cell := e.cell()
		if e.ending != "" || !cell.Interrupted.IsZero() || !e.goesOver.IsZero() || rank(cell) == 0 || !s.fits(r, cell) {
			continue
		}
		if rank(cell) >= 2 && (e.session == nil || !e.session.Connected()) {
			connecting = connecting || s.connecting(e)
			continue // it may be lost
		}
		if best == nil || rank(cell) > rank(best.cell()) || cell.Template == template && best.cell().Template != template {
			best = e
		}
	}
	return best, connecting && (best == nil || rank(best.cell()) < 2)
}

// firstConnect is how long Kip waits for standby cells after it has begun: a connection
// takes tens of milliseconds, a new cell a boot.
const firstConnect = 3 * time.Second

// connecting says that Kip connects to a cell for the first time, and that nothing has gone
// wrong yet. One whose store is behind connects to none that it may give. The caller holds table.mu.
func (s *standbys) connecting(e *entry) bool {
	beginning := s.listening.since().IsZero() || s.loop.clock.Since(s.listening.since()) < firstConnect
	return beginning && !s.lineage.isBehind() && (e.session == nil || e.session.LastError() == nil)
}

// take promises a standby cell that fits to a pod; nil where there is none. Its only
// error is ErrConnecting. The caller holds table.mu.
func (s *standbys) take(r Request) (*entry, error) {
	best, connecting := s.find(r)
	switch {
	case connecting:
		return nil, ErrConnecting
	case best == nil:
		return nil, nil
	}
	delete(s.table.standby, best.id)
	best.pod, best.disks, best.arrived = r.Pod, r.Disks, r.Arrived
	s.table.reserve(best)
	s.pools.noteTaken(best.cell().Standby)
	return best, nil
}

// give stores that a standby cell is a pod's.
func (s *standbys) give(ctx context.Context, e *entry, r Request) (Cell, error) {
	s.pools.refillSoon()
	err := s.records.save(ctx, e, func(cell *Cell) error {
		if cell.Phase != apiv1.Ready {
			return fmt.Errorf("standby cell %s is %s", cell.ID, cell.Phase)
		}
		cell.Pod, cell.Attempt, cell.HealthyTimeout, cell.Disks, cell.Plugins = r.Pod, r.Attempt, r.HealthyTimeout, r.Disks, r.Plugins
		cell.Node, cell.Best, cell.RuledOut = r.Node, r.best(), r.RuledOut
		cell.PodCreated, cell.Account, cell.Needs, cell.GPUs = r.Created, r.Account, r.Needs, r.GPUs
		cell.Accelerators = r.Accelerators
		cell.Reason = "a standby cell of " + cell.Standby + ": " + r.Offerings[0].Reason
		cell.step(apiv1.StepSeen, r.Seen)
		cell.step(apiv1.StepGiven, s.loop.clock.Now())
		return nil
	})
	if err != nil {
		// Whatever is stored, the cell ends. Where that is not known, it is the
		// pod's until it is gone.
		lockWriting(ctx, e)
		s.table.mu.Lock()
		if e.unsure == nil {
			s.table.unreserve(e)
			e.pod = apiv1.PodReference{}
		}
		if e.ending == "" {
			e.ending = "it could not be given to pod " + r.Pod.String()
		}
		s.table.mu.Unlock()
		e.writing.Unlock()
		if refusedWrite(err) {
			s.loop.fail(err)
		}
		s.loop.queue.Add(e.id)
		return Cell{}, fmt.Errorf("give standby cell %s to pod %s: %w", e.id, r.Pod, err)
	}
	s.tagging.tagGiven(e)
	s.loop.queue.Add(e.id)
	return *e.cell(), nil
}
