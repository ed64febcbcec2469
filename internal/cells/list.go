package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/guard"
)

// lister reads the cloud's list of our instances, and compares it with the cells.
type lister struct {
	table        *table
	loop         *loop
	calls        *pipe.Pipe
	observers    *observers
	inventory    *inventory
	generations  *generations
	lineage      *lineage
	exclusion    *exclusion
	listening    *listening
	connections  *connections
	silentZones  *silentZones
	endings      *endings
	terminations *terminations
	ends         *ends
	tagging      *tagging
	boosting     *boosting
	owner        string
	interval     time.Duration // how often the list is asked for at least
	soonest      time.Duration // the least time between two calls
}

// run compares the cloud's list of our instances with the cells, until
// ctx ends.
func (s *lister) run(ctx context.Context) {
	idle := s.loop.clock.NewTicker(s.interval)
	defer idle.Stop()
	for {
		s.loop.pulse.Turn(ctx, "inventory", s.lookOnce)
		select {
		case <-ctx.Done():
			return
		case <-idle.C():
			continue
		case <-s.inventory.polls:
		}
		select {
		case <-ctx.Done():
			return
		case <-s.loop.clock.After(s.soonest):
		}
	}
}

// lookOnce asks for the cloud's list and compares it with the cells.
func (s *lister) lookOnce(ctx context.Context) {
	began := s.loop.clock.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	list, err := s.calls.List(call, s.owner)
	cancel()
	switch {
	case err == nil:
		s.compare(ctx, began, list)
	case ctx.Err() == nil:
		s.loop.log.Warn("list our instances", "cloud", s.calls.Name(), "err", err)
	}
}

// compare takes an answer of the cloud, and acts on what follows from it.
func (s *lister) compare(ctx context.Context, began time.Time, listing cloud.Listing) {
	var cells []known
	s.table.mu.Lock()
	for _, e := range s.table.byID {
		k := known{cell: e.cell(), cutOff: e.session != nil && !e.session.Connected()}
		k.heard = s.loop.clock.Since(e.lastSign()) < guard.Fresh
		if i := k.cell.Instance; i != nil && s.endings.byInstance[i.ID] != nil {
			k.terminated = s.endings.byInstance[i.ID].accepted
		}
		k.addressed = k.cell.Instance == nil || s.connections.addressed(k.cell.Instance)
		cells = append(cells, k)
	}
	s.table.mu.Unlock()
	listing.Instances = s.leaveOthers(listing.Instances, cells)
	s.silentZones.avoid(listing.Silent)
	seen, f := s.inventory.show(began, listing, cells, s.exclusion.born)
	// First: nothing may be launched by a look that has not told what is unknown.
	was, sure := s.lineage.behind()
	s.compareGenerations(ctx, seen, f.unnamed)
	if is, _ := s.lineage.behind(); !sure && is != was {
		for _, k := range cells {
			f.wake = append(f.wake, k.cell.ID) // it may have waited for that
		}
	}
	// Those whom the look shows do not wait for what the cloud says of others.
	seen = s.inventory.adopt(seen, f, nil)
	s.terminations.forgetStrays(seen)
	for _, id := range f.wake {
		s.loop.queue.Add(id)
	}
	s.tagging.tagUntagged(seen)
	s.boosting.unboostAll()
	states, faults := s.describe(ctx, f.absent)
	if len(f.absent) > 0 {
		seen = s.inventory.adopt(seen, f, states)
	}
	log := s.loop.log
	for _, id := range seen.hides {
		log.Error("the cloud's list does not show an instance that is alive, and counts for the others all the same: has it lost its tags?",
			"instance", id, "owner", s.owner)
	}
	population := s.ends.population()
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
	for range f.found {
		s.observers.OrphanFound()
	}
	for _, i := range f.orphans {
		s.terminations.endStray(i)
	}
}

// leaveOthers takes those out of a list that have Kip's tags, and that somebody else has launched:
// they are told once, and nothing follows from them.
func (s *lister) leaveOthers(list []cloud.Instance, cells []known) []cloud.Instance {
	owned := map[string]bool{}
	for _, k := range cells {
		if i := k.cell.Instance; i != nil {
			owned[i.ID] = true
		}
	}
	others := map[string]bool{}
	list = slices.DeleteFunc(slices.Clone(list), func(i cloud.Instance) bool {
		if owned[i.ID] || s.launched(i) {
			return false
		}
		others[i.ID] = true
		if !s.inventory.foreign[i.ID] {
			s.loop.log.Error("an instance has the tags of this Kip, and was launched by somebody else: it is left alone; remove its tags",
				"instance", i.ID, "owner", s.owner)
		}
		return true
	})
	s.inventory.foreign = others
	return list
}

// launched says that an instance with this Kip's tags was launched by it, or by one before it.
func (s *lister) launched(i cloud.Instance) bool {
	// One that ends shows less and less of itself, and is left alone anyway.
	return i.State == cloud.Terminating || launchedBy(s.owner, i)
}

// compareGenerations sees whether the store knows of the instances that no cell has.
func (s *lister) compareGenerations(ctx context.Context, seen look, unnamed []cloud.Instance) {
	news, err := s.lineage.saw(ctx, seen, unnamed, s.loop.clock.Now())
	if news {
		s.loop.log.Error(behind, "instances", len(s.generations.now().Unknown), "store", s.lineage.current().Store)
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case refusedWrite(err):
		s.loop.fail(err)
	default:
		s.loop.log.Warn("store that the store is behind, retrying", "err", err)
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

// loseTo ends a cell for a sign that the cloud has given, unless the cell was heard.
func (s *lister) loseTo(ctx context.Context, id string, population int, seen sign) {
	s.table.mu.Lock()
	e := s.table.byID[id]
	if e != nil {
		seen.heard = s.listening.mayHaveHeard(e, seen.sure)
	}
	s.table.mu.Unlock()
	if e != nil {
		s.ends.lose(ctx, e, population, seen)
	}
}

// describeMost is how many instances one call describes.
const describeMost = 500

// describe asks the cloud of each instance that a look does not show, and returns
// their states, and why the cloud has ended them where it says; those of which it got no
// answer are left out.
func (s *lister) describe(ctx context.Context, asked []absent) (states map[string]cloud.State, faults map[string]error) {
	states, faults = make(map[string]cloud.State, len(asked)), map[string]error{}
	for group := range slices.Chunk(asked, describeMost) {
		ids := make([]string, len(group))
		for n, a := range group {
			ids[n] = a.instance()
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		described := s.calls.DescribeEach(call, ids...)
		cancel()
		var failed error // one of them: a call that fails does so for all that it names
		unanswered := 0
		for n, d := range described {
			if d.Err != nil {
				failed = d.Err
				unanswered++
				continue
			}
			states[ids[n]], faults[ids[n]] = d.Instance.State, d.Instance.Fault
		}
		if failed != nil && ctx.Err() == nil {
			s.loop.log.Warn("describe instances that the cloud's list does not show", "cloud", s.calls.Name(),
				"instances", len(ids), "unanswered", unanswered, "err", failed)
		}
	}
	return states, faults
}
