package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cloud/pipe"
)

// lister asks for the cloud's list of our instances, and has it compared with the cells.
type lister struct {
	loop        *loop
	calls       *pipe.Pipe
	inventory   *inventory
	silentZones *silentZones
	comparing   *comparing
	owner       string
	interval    time.Duration // how often the list is asked for at least
	soonest     time.Duration // the least time between two calls
}

// run compares the cloud's list of our instances with the cells, until
// ctx ends.
func (s *lister) run(ctx context.Context) {
	idle := s.loop.clock.NewTicker(s.interval)
	defer idle.Stop()
	for {
		s.loop.watchdog.Track(ctx, "inventory", s.listOnce)
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

// listOnce asks for the cloud's list and compares it with the cells.
func (s *lister) listOnce(ctx context.Context) {
	began := s.loop.clock.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	list, err := s.calls.List(call, s.owner)
	cancel()
	switch {
	case err == nil:
		s.silentZones.avoid(list.Silent)
		s.comparing.compare(ctx, began, list)
	case ctx.Err() == nil:
		s.loop.log.Warn("list our instances", "cloud", s.calls.Name(), "err", err)
	}
}
