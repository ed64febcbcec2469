package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"k8s.io/utils/clock"
)

// upgrades have the agents of images go over to the agent of their cells' launch.
type upgrades struct {
	table    *table
	agents   *asking
	blockers *blockers
	clock    clock.PassiveClock
	since    perCell[time.Time] // since when an agent was told of another, which has not answered yet; under table.mu
}

// sinceLocked returns since when the agent of a cell goes over to another; zero if it does not. The caller holds table.mu.
func (s *upgrades) sinceLocked(e *entry) time.Time { return *s.since.of(e) }

// goOver has the image's agent go over to the one that the cell was launched for: before it
// is joined, and so before anything of it counts. Until a cell is bound that holds for each
// connection, since a machine that lost its power may have come back with its image's agent.
// The error is errAgentFetched as long as that goes on.
func (s *upgrades) goOver(ctx context.Context, e *entry, session agentSession) error {
	wanted, phase := e.cell().Agent(), e.cell().Phase
	if wanted == nil || phase != apiv1.Booting && phase != apiv1.Ready {
		return nil
	}
	err := s.agents.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) error { return agent.PutAgent(ctx, *wanted) })
	switch {
	case errors.Is(err, agentapi.ErrNotYet):
		err = fmt.Errorf("%w: %w", errAgentFetched, err)
	case answered(err, http.StatusBadRequest, http.StatusNotFound):
		err = fmt.Errorf("%w: %w", errNoAgent, err)
	}
	if err == nil && e.cell().StepTime(apiv1.StepJoined).IsZero() {
		s.blockers.noteAgentRuns(e.cell())
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	switch since := s.since.of(e); {
	case err == nil:
		*since = time.Time{}
	case since.IsZero() && errors.Is(err, errAgentFetched):
		*since = s.clock.Now() // and while the other one has not joined yet
	}
	return err
}
