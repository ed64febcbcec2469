package cells

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
)

// dialling starts the tunnels to cells.
type dialling struct {
	loop    *loop
	calls   *pipe.Pipe
	tunnels Tunnels
	tokens  *tokens
}

// dial starts the tunnel to the cell.
func (s *dialling) dial(ctx context.Context, e *entry, api http.Handler) (Session, error) {
	cell := e.cell()
	target := tunnel.Target{
		CellID:  cell.JoinID(),
		Addr:    netip.AddrPortFrom(cell.Instance.DialIP(s.calls.Capabilities().DialPublic), agentapi.Port),
		KeyHash: cell.KeyHash,
		CA:      cell.CA,
		Rank:    e.rank,
		OnState: func(connected bool, _ error) {
			if !connected {
				// Noted here: when the worker runs, the session may be connected
				// again, to an agent that has started anew.
				e.noteBreak()
			}
			s.loop.queue.Add(cell.ID)
		},
	}
	if cell.Token != "" {
		var err error
		if target.Token, err = pki.ParseToken(cell.Token); err != nil {
			return nil, fmt.Errorf("read the join token of cell %s: %w", cell.ID, err)
		}
	}
	return s.tunnels.Keep(ctx, target, api, func(ctx context.Context, keyHash string) error { return s.tokens.spend(ctx, e, keyHash) })
}

// rank is who is connected first where not all can be at once: who runs a pod, then
// who is to run one, then who stands by.
func (e *entry) rank() int {
	switch cell := e.cell(); {
	case cell.Pod.UID == "":
		return 2
	case cell.Phase == apiv1.Booting, cell.Phase == apiv1.Ready:
		return 1
	}
	return 0
}
