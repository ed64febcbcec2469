package cells

import (
	"context"
	"fmt"

	"github.com/elotl/kip/internal/events"
)

// renaming makes the kubelets of ready cells those of the nodes of their pods.
type renaming struct {
	loop        *loop
	nodeNames   *nodeNames
	connections *connections
	waits       *bindWaits
	renamed     perCell[bool] // a kubelet is to be of another node, and is not ready as that of it; of its worker
}

var _ preparation = (*renaming)(nil)

// prepare makes the kubelet of a ready cell that of another virtual node, where the cell
// was made for none or for another: a kubelet learns its node's name when it starts.
// Until the agent has its new configuration the old kubelet is refused
// everything, and is never shown the pod.
func (s *renaming) prepare(ctx context.Context, e *entry) (progress, error) {
	was := e.connection()
	if was.api == nil {
		return done, nil
	}
	renamed := s.renamed.of(e)
	node := s.nodeNames.of(e.cell())
	if was.node != node {
		s.loop.log.Debug("a cell's kubelet becomes that of another node", "cell", e.id, "node", node, "before", was.node)
		e.async.drop("") // of the kubelet of before
		s.connections.disconnect(e)
		s.waits.restart(e)
		*renamed = true
	}
	if !*renamed {
		return done, nil
	}
	got, err := s.connections.connect(ctx, e)
	switch {
	case err != nil || !got.isDone():
	case s.connections.kubeletReady(e):
		*renamed = false
		s.waits.over(ctx, e)
		return done, nil
	default:
		got = await("its kubelet is not ready as that of node " + node) // the tunnel and the kubelet wake the cell
	}
	why := fmt.Sprintf("its kubelet was not ready in time as that of node %s: %s", node, s.connections.waitsFor(e))
	return s.waits.wait(ctx, e, bindWait{
		by:       s,
		progress: got,
		failure:  err,
		timeout:  readyTimeout,
		end:      cellEnd{CauseNotReady, why, events.NewCellGivenUp(e.id, why)},
	})
}
