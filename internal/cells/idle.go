package cells

import (
	"context"
	"fmt"

	"github.com/elotl/kip/internal/cloud/pipe"
)

// idling is what standby cells do until they are taken: they wait, or are stopped. It has those started again that are taken.
type idling struct {
	calls       *pipe.Pipe
	pools       *pools
	inventory   *inventory
	connections *connections
	stopping    *stopping
	starting    *starting
}

// notTaken is the wait of an idle standby cell.
const notTaken = "no pod has taken it yet"

// idle has a standby cell wait until a pod takes it, or has it stopped.
func (s *idling) idle(ctx context.Context, e *entry) (progress, error) {
	if s.stops(e.cell()) {
		if err := s.stopping.begin(ctx, e); err != nil {
			return progress{}, err
		}
		return s.stopOrStart(ctx, e)
	}
	if !e.session().connected() {
		s.inventory.pollSoon() // is the machine still there?
		return waitFor(notConnected, silentPoll), nil
	}
	return await(notTaken), nil
}

// stops reports whether an idle standby cell is to be stopped.
func (s *idling) stops(cell *Cell) bool {
	return s.calls.Optional().Stopper != nil && s.pools.stops(cell.Standby) && cell.Pod.UID == ""
}

// stopOrStart moves a stopped cell's instance to where it should be: stopped, or
// running again for the pod that took it.
func (s *idling) stopOrStart(ctx context.Context, e *entry) (progress, error) {
	machines := s.calls.Optional().Stopper
	if machines == nil {
		return progress{}, fmt.Errorf("cell %s is stopped, and cloud %s cannot start it", e.id, s.calls.Name())
	}
	s.connections.disconnect(e)
	if e.cell().Pod.UID == "" {
		return s.stopping.stop(ctx, e, machines)
	}
	return s.starting.start(ctx, e, machines)
}

// waitsForLocked returns what keeps a stopped cell from being started. The caller holds table.mu.
func (s *idling) waitsForLocked(e *entry) string { return s.starting.waitsForLocked(e) }
