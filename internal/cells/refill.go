package cells

import (
	"context"
	"errors"
)

// refilling keeps the standby pools full.
type refilling struct {
	table      *table
	loop       *loop
	additions  *additions
	pools      *pools
	ends       *cellEnds
	generation *StoreGeneration
}

// run keeps the standby pools full until ctx ends.
func (s *refilling) run(ctx context.Context) {
	for {
		s.loop.watchdog.Track(ctx, "standby pools", s.fill)
		timer := s.loop.clock.NewTimer(s.pools.next())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-s.pools.refill:
			timer.Stop()
		}
	}
}

// fill makes what the pools lack and ends what they have too many of. It is the
// only place that does, so that no burst makes more than are wanted.
func (s *refilling) fill(ctx context.Context) {
	if s.generation.isBehind() {
		return
	}
	s.table.mu.Lock()
	surplus, lacking := s.pools.plan(s.table.standbyCellsLocked())
	for _, id := range surplus {
		s.ends.beginLocked(s.table.standby[id], cellEnd{cause: CauseStandbyRetired, evidence: "its standby pool does not want it any more"})
	}
	s.table.mu.Unlock()
	for name, n := range lacking {
		s.make(ctx, name, n)
	}
}

// make requests n cells for a pool.
func (s *refilling) make(ctx context.Context, name string, n int) {
	offerings, err := s.pools.offerings(name)
	if errors.Is(err, errLater) {
		return
	}
	for range n {
		if err != nil || ctx.Err() != nil {
			break
		}
		e := newEntry(s.pools.newCell(name, offerings), 0)
		s.table.mu.Lock()
		s.table.reserveLocked(e)
		s.table.mu.Unlock()
		err = s.additions.add(ctx, e)
	}
	if s.pools.noteFilled(name, err) && err != nil {
		s.loop.log.Warn("a standby pool cannot be filled", "standby", name, "err", err)
	}
}
