package cells

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/agentlimit"
)

// configTimeout bounds a request to an agent: with its configuration it starts the
// kubelet's process.
const configTimeout = 10 * time.Second

// asking asks the agents of cells, a bounded number at a time.
type asking struct {
	limiter *agentlimit.Limiter
	paces   perCell[agentlimit.Pace]
}

// ask asks a cell's agent on a session, which may be closed meanwhile.
func (a *asking) ask(ctx context.Context, e *entry, s agentSession, do func(context.Context, agentapi.Client) error) error {
	return a.within(ctx, e, configTimeout, func(ctx context.Context) error {
		return do(ctx, agentapi.Client{Conn: s.conn()})
	})
}

// within asks a cell's agent in its turn, and gives it a time to answer.
func (a *asking) within(ctx context.Context, e *entry, timeout time.Duration, do func(context.Context) error) error {
	return a.limiter.Ask(ctx, a.paces.of(e), e.cell().Pod.Namespace, timeout, do)
}

// answered reports whether an agent has answered with one of some codes of HTTP.
func answered(err error, codes ...int) bool {
	refused, is := errors.AsType[*agentapi.StatusError](err)
	return is && slices.Contains(codes, refused.Code)
}

// putDisks tells the agent which disks its cell is to have.
func (a *asking) putDisks(ctx context.Context, e *entry, s agentSession, ids []string) error {
	return a.ask(ctx, e, s, func(ctx context.Context, agent agentapi.Client) error { return agent.PutDisks(ctx, ids) })
}

// putPlugins tells the agent which plugins its cell is to have.
func (a *asking) putPlugins(ctx context.Context, e *entry, s agentSession, list []Plugin) error {
	plugins := make([]agentapi.Plugin, len(list))
	for i, p := range list {
		plugins[i] = agentapi.Plugin{Driver: p.Driver, Pod: p.Pod}
	}
	return a.ask(ctx, e, s, func(ctx context.Context, agent agentapi.Client) error { return agent.PutPlugins(ctx, plugins) })
}
