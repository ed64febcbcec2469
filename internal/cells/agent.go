package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

// goOverTimeout is how long a ready cell may take to go over to the agent of its launch: an agent gives the
// fetching up after two minutes.
const goOverTimeout = 3 * time.Minute

var (
	// errNoAgent: the agent that the cell was launched for cannot be had there.
	errNoAgent = errors.New("the agent of cells.itzo was not started")
	// errAgentFetched: it is under way.
	errAgentFetched = errors.New("its agent is being fetched")
)

// Agent returns the agent that the cell was launched for; nil where that of its image will do.
func (c Cell) Agent() *agentapi.Agent {
	if c.Launch == nil {
		return nil
	}
	return c.Launch.Agent
}

// keptAgents has ready cells run the agent of their launch.
type keptAgents struct {
	table       *table
	loop        *loop
	ends        *cellEnds
	connections *connections
	inventory   *inventory
	upgrades    *upgrades
}

var _ preparation = (*keptAgents)(nil)

// prepare has a ready cell run the agent that it was launched for, before it is given a pod. A
// cell that has come back with another one, and does not go over in time, is to end. One that is
// away is not ready: nobody knows which it comes back with. Its health bounds that.
func (s *keptAgents) prepare(ctx context.Context, e *entry) (progress, error) {
	if e.cell().Agent() == nil {
		return done, nil
	}
	got, err := s.connections.connect(ctx, e)
	switch {
	case errors.Is(err, errNoAgent):
		s.end(e, err.Error())
		return leave, nil
	case err != nil || got.state == isUnderWay:
		return got, err
	}
	s.table.mu.Lock()
	since, there, lacks := s.upgrades.sinceLocked(e), e.connection().configured, s.connections.waitsForLocked(e)
	s.table.mu.Unlock()
	switch {
	case since.IsZero() && there:
		return done, nil
	case since.IsZero():
		s.inventory.pollSoon() // is the machine still there?
		return waitFor(notConnected, silentPoll), nil
	}
	left := s.loop.leftTo(e, since, goOverTimeout)
	if left <= 0 {
		s.end(e, events.AgentNotRestored(lacks))
		return leave, nil
	}
	return waitFor(errAgentFetched.Error(), min(left, agentPoll)), nil
}

// waitsForLocked returns why a ready cell has not the agent of its launch. The caller holds table.mu.
func (s *keptAgents) waitsForLocked(e *entry) string {
	if e.cell().Agent() == nil || !e.session().cutOff() && s.upgrades.sinceLocked(e).IsZero() {
		return ""
	}
	return s.connections.waitsForLocked(e)
}

// end has a ready cell end that has not the agent of its launch.
func (s *keptAgents) end(e *entry, why string) {
	instance := e.cell().Instance.ID
	s.ends.begin(e, cellEnd{CauseUnfit, fmt.Sprintf("cell %s on %s: %s", e.id, instance, why), events.NewAgentNotStarted(e.id, instance, why)})
}
