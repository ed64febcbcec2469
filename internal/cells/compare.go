package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// comparing compares what the cloud has listed with the cells.
type comparing struct {
	known            *knownCells
	foreign          *foreign
	inventory        *inventory
	generationChecks *generationChecks
	describing       *describing
	consequences     *consequences
}

// compare takes an answer of the cloud, and acts on what follows from it.
func (s *comparing) compare(ctx context.Context, began time.Time, listing cloud.Listing) {
	cells := s.known.now()
	listing.Instances = s.foreign.leave(listing.Instances, cells)
	seen, f := s.inventory.compare(began, listing, cells)
	// First: nothing may be launched by a snapshot that has not told what is unknown.
	if s.generationChecks.compare(ctx, seen, f.orphans) {
		for _, k := range cells {
			f.wake = append(f.wake, k.cell.ID) // it may have waited for that
		}
	}
	// Those whom the snapshot shows do not wait for what the cloud says of others.
	seen = s.inventory.adopt(seen, f, nil)
	s.consequences.shown(seen, f)
	states, faults := s.describing.describe(ctx, f.absent)
	if len(f.absent) > 0 {
		seen = s.inventory.adopt(seen, f, states)
	}
	s.consequences.described(ctx, seen, f, states, faults)
}

// knownCells are the cells, as a snapshot is compared with them.
type knownCells struct {
	table        *table
	loop         *loop
	calls        *pipe.Pipe
	terminations *terminations
}

// now returns all cells as they are now.
func (s *knownCells) now() (cells []known) {
	dialPublic := s.calls.Capabilities().DialPublic
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, e := range s.table.byID {
		link := e.connection()
		k := known{cell: e.cell(), cutOff: link.session.cutOff(), heard: link.isHeard(s.loop.clock.Now())}
		if i := k.cell.Instance; i != nil {
			k.terminated = s.terminations.accepted(i.ID)
		}
		k.addressed = k.cell.Instance == nil || addressed(k.cell.Instance, dialPublic)
		cells = append(cells, k)
	}
	return cells
}
