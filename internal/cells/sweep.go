package cells

import (
	"context"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

const (
	// partsPoll is how often the cloud is asked for the parts of instances: what they
	// cost is little, and nobody waits for them.
	partsPoll = time.Minute
	// partsMost is how many parts one call deletes.
	partsMost = 100
)

// sweeping deletes the parts of instances that are gone.
type sweeping struct {
	table      *table
	loop       *loop
	calls      *pipe.Pipe
	inventory  *inventory
	generation *StoreGeneration
	observers  *observers
	owner      string
}

// run deletes what instances have left, until ctx ends: network interfaces,
// addresses and the like.
func (s *sweeping) run(ctx context.Context) {
	parts := s.calls.Optional().OwnedResources
	if parts == nil {
		return
	}
	left := map[string]time.Time{}
	for s.loop.sleep(ctx, partsPoll) {
		if s.generation.isBehind() {
			continue
		}
		began := s.loop.clock.Now()
		call, cancel := context.WithTimeout(ctx, callTimeout)
		list, err := parts.ListOwned(call, s.owner)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				s.loop.log.Warn("list the parts of our instances, retrying", "cloud", s.calls.Name(), "err", err)
			}
			continue
		}
		var due []cloud.OwnedResource
		// An instance that was launched since may have one of them.
		for s.inventory.pollSoon(); !s.inventory.last().began.After(began); {
			if !s.loop.sleep(ctx, time.Second) {
				return
			}
		}
		left, due = s.find(began, list, left)
		for group := range slices.Chunk(due, partsMost) {
			s.delete(ctx, group)
		}
	}
}

// find finds the parts whose instance and cell are gone, and since when they are
// seen so. Due are those that were so in two lists that are orphanAge apart. A part
// of a batch says no cell: without an instance it is nobody's, unless a cell of the
// batch has no instance yet. A part that says none of these is the owner's own, as a
// security group is.
func (s *sweeping) find(
	began time.Time, list []cloud.OwnedResource, before map[string]time.Time,
) (left map[string]time.Time, due []cloud.OwnedResource) {
	seen := s.inventory.last()
	kept := map[string]bool{} // cells, instances, and launches that are open
	s.table.mu.Lock()
	for _, e := range s.table.byID {
		kept[e.id] = true
		if cell := e.cell(); cell.Instance != nil {
			kept[cell.Instance.ID] = true
		} else if cell.Launch != nil {
			kept[cell.Launch.ID] = true
		}
	}
	s.table.mu.Unlock()
	left = map[string]time.Time{}
	for _, p := range list {
		cell, batch := p.Tags[cloud.TagCell], p.Tags[cloud.TagBatch]
		if cell == "" && batch == "" && p.Instance == "" || kept[cell] || kept[p.Instance] || p.Instance == "" && kept[batch] {
			continue
		}
		// The instance may be one without a cell: it goes first.
		if _, there := seen.byID[p.Instance]; there || !seen.covers(p.Zone) || seen.began.IsZero() {
			continue
		}
		since, again := before[p.ID]
		if !again {
			since = began
			s.observers.OwnedLeft()
		}
		left[p.ID] = since
		if began.Sub(since) >= orphanAge {
			due = append(due, p)
		}
	}
	return left, due
}

func (s *sweeping) delete(ctx context.Context, group []cloud.OwnedResource) {
	ids := make([]string, len(group))
	for n, p := range group {
		ids[n] = p.ID
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	results := s.calls.Optional().OwnedResources.DeleteOwned(call, ids...)
	cancel()
	if ctx.Err() != nil {
		return
	}
	for n, p := range group {
		log := s.loop.log.With("part", p.ID, "kind", p.Kind, "cell", p.Tags[cloud.TagCell], "instance", p.Instance)
		if err := results[n].Err; err != nil {
			log.Warn("delete what an instance has left, retrying", "err", err)
		} else {
			log.Info("deleted what an instance has left")
		}
		s.observers.OwnedDeleted(results[n].Err)
	}
}
