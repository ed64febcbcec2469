package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

const (
	// agentPoll is how often a cell is asked whether it has its agent.
	agentPoll = time.Second
	// goOverTimeout is how long a ready cell may take to go over to it: the agent gives the
	// fetching up after two minutes.
	goOverTimeout = 3 * time.Minute
)

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
// is joined, and so before anything of it counts. Until a cell is bound that holds for each
// connection, since a machine that lost its power may have come back with its image's agent.
// The error is errAgentFetched as long as that goes on.
func (c *Controller) goOver(ctx context.Context, e *entry, session Session) error {
	wanted, phase := e.cell().Agent(), e.cell().Phase
	if wanted == nil || phase != apiv1.Booting && phase != apiv1.Ready {
		return nil
	}
	err := c.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) error { return agent.PutAgent(ctx, *wanted) })
	switch {
	case errors.Is(err, agentapi.ErrNotYet):
		err = fmt.Errorf("%w: %w", errAgentFetched, err)
	case answered(err, http.StatusBadRequest, http.StatusNotFound):
		err = fmt.Errorf("%w: %w", errNoAgent, err)
	}
	if err == nil && e.cell().StepTime(apiv1.StepJoined).IsZero() {
		c.heardAgent(e.cell())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		e.goesOver = time.Time{}
	case e.goesOver.IsZero() && errors.Is(err, errAgentFetched):
		e.goesOver = c.cfg.Clock.Now() // and while the other one has not joined yet
	}
	return err
}

// keepAgent has a ready cell run the agent that it was launched for, before it is given a pod. A
// cell that has come back with another one, and does not go over in time, is to end. One that is
// away is not ready: nobody knows which it comes back with. Its health bounds that.
func (c *Controller) keepAgent(ctx context.Context, e *entry) (ready bool, again time.Duration, err error) {
	if why, _ := c.endingOf(e); why != "" || e.cell().Stopped || e.cell().Agent() == nil {
		return true, 0, nil
	}
	err = c.connect(ctx, e)
	switch {
	case errors.Is(err, errNoAgent):
		c.endWithoutAgent(e, err.Error())
		return true, 0, nil
	case err != nil && !errors.Is(err, errAgentFetched):
		return false, 0, err
	}
	c.mu.Lock()
	since, there := e.goesOver, e.configured
	c.mu.Unlock()
	switch {
	case since.IsZero() && there:
		return true, 0, nil
	case since.IsZero():
		c.pollSoon() // is the machine still there?
		return false, silentPoll, nil
	}
	left := e.timeLeft(since.Add(goOverTimeout + c.cfg.Late.Since(since)).Sub(c.cfg.Clock.Now()))
	if left <= 0 {
		c.endWithoutAgent(e, "it came back with another agent, and had not that of cells.itzo in time: "+e.bootsUntil())
		return true, 0, nil
	}
	return false, min(left, agentPoll), nil
}

// endWithoutAgent has a ready cell end that has not the agent of its launch.
func (c *Controller) endWithoutAgent(e *entry, why string) {
	why = fmt.Sprintf("cell %s on %s: %s", e.id, e.cell().Instance.ID, why)
	c.mu.Lock()
	begun := e.beginEnd(CauseUnfit, why)
	c.mu.Unlock()
	if begun {
		c.warn(e.cell(), events.AgentNotStarted, "%s; it is terminated and another is tried", why)
	}
}

// maxVersions bounds the versions of agents that are remembered; then all are told again.
const maxVersions = 100

// agentOfOther says that the cell's agent is of another version than Kip's, and none that the
// operator has named for it (cells.itzo). A Kip without a version, "", compares none.
func (c *Cell) agentOfOther(kip string) bool {
	return kip != "" && c.AgentRuns.Version != "" && c.AgentRuns.Version != kip && c.Agent() == nil
}

// tellVersion tells the node of an agent of another version than Kip's, once of each image. The cell
// goes on: what the two say to each other is understood by neighbouring releases, and what is not
// known to one of them is refused by name.
func (c *Controller) tellVersion(e *entry) {
	cell := e.cell()
	if c.cfg.NodeEvents == nil || !cell.agentOfOther(c.cfg.Version) {
		return
	}
	of := withAgentOf(&agentapi.Agent{Version: cell.AgentRuns.Version}, cell)
	c.mu.Lock()
	told := c.versions[of]
	if !told && len(c.versions) >= maxVersions {
		clear(c.versions)
	}
	c.versions[of] = true
	c.mu.Unlock()
	if told {
		return
	}
	c.cfg.NodeEvents.Event(c.cfg.NodeName, warning, events.AgentVersionDiffers,
		fmt.Sprintf("the agent of cell %s is %s, and Kip is %s: the cell goes on, but what one of the two does not know is not done; "+
			"want an image of Kip's version, or cells.itzo", e.id, cell.AgentRuns.Version, c.cfg.Version))
}
