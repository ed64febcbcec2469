package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// agentPoll is how often a cell is asked whether it has its agent.
const agentPoll = time.Second

var (
	// errNoAgent: the agent that the cell was launched for cannot be had there.
	errNoAgent = errors.New("the agent of cells.itzo was not started")
	// errAgentFetched: it is under way.
	errAgentFetched = errors.New("its agent is being fetched")
)

// Agent is the agent that the cell was launched for; nil where that of its image will do.
func (c Cell) Agent() *agentapi.Agent {
	if c.Launch == nil {
		return nil
	}
	return c.Launch.Agent
}

// goOver has the image's agent go over to the one that the cell was launched for: before it
// is joined, and so before anything of it counts. The error is errAgentFetched as long as that
// goes on.
func (c *Controller) goOver(ctx context.Context, e *entry, session Session) error {
	wanted := e.cell().Agent()
	if wanted == nil || !e.cell().StepTime(apiv1.StepJoined).IsZero() {
		return nil
	}
	err := c.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) error { return agent.PutAgent(ctx, *wanted) })
	var refused *agentapi.StatusError
	switch {
	case errors.Is(err, agentapi.ErrNotYet):
		err = fmt.Errorf("%w: %w", errAgentFetched, err)
	case errors.As(err, &refused) && (refused.Code == http.StatusBadRequest || refused.Code == http.StatusNotFound):
		err = fmt.Errorf("%w: %w", errNoAgent, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.goesOver = err != nil // until then, and while the other one has not joined yet
	return err
}
