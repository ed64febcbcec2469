package cells

import (
	"context"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/agentlimit"
)

// asking asks the agents of cells, a bounded number at a time.
type asking struct{ limiter *agentlimit.Limiter }

// ask asks a cell's agent on a session, which may be closed meanwhile.
func (a *asking) ask(ctx context.Context, e *entry, s Session, do func(context.Context, agentapi.Client) error) error {
	return a.limiter.Ask(ctx, &e.pace, e.cell().Pod.Namespace, configTimeout, func(ctx context.Context) error {
		return do(ctx, agentapi.Client{Conn: s.Conn()})
	})
}

// putDisks tells the agent which disks its cell is to have.
func (a *asking) putDisks(ctx context.Context, e *entry, s Session, ids []string) error {
	return a.ask(ctx, e, s, func(ctx context.Context, agent agentapi.Client) error { return agent.PutDisks(ctx, ids) })
}

// putPlugins tells the agent which plugins its cell is to have.
func (a *asking) putPlugins(ctx context.Context, e *entry, s Session, list []Plugin) error {
	plugins := make([]agentapi.Plugin, len(list))
	for i, p := range list {
		plugins[i] = agentapi.Plugin(p)
	}
	return a.ask(ctx, e, s, func(ctx context.Context, agent agentapi.Client) error { return agent.PutPlugins(ctx, plugins) })
}
