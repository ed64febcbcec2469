package cells

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// nodeOf is the virtual node that a cell's kubelet is to be.
func (c *Controller) nodeOf(cell *Cell) string {
	if cell.Node == "" && cell.Pod.UID == "" && c.cfg.Nodes != nil {
		return c.cfg.Nodes.StandbyNode(cell.Offer())
	}
	return cmp.Or(cell.Node, c.cfg.NodeName)
}

// NodeOf returns the virtual node of a cell's pod; for a standby cell that of which its
// kubelet is.
func (c *Controller) NodeOf(cell Cell) string { return c.nodeOf(&cell) }

// NodesOf returns NodeOf for many cells at one moment: for standby cells that are launched
// alike Config.Nodes is asked once, which goes through the catalogue.
func (c *Controller) NodesOf() func(Cell) string {
	type launched struct {
		instanceType, zone string
		spot, dedicated    bool
	}
	asked := map[launched]string{}
	return func(cell Cell) string {
		if cell.Node != "" || cell.Pod.UID != "" {
			return c.nodeOf(&cell)
		}
		o := cell.Offer()
		as := launched{
			instanceType: o.InstanceType,
			zone:         o.Zone,
			spot:         o.Spot,
			dedicated:    o.Dedicated,
		}
		node, was := asked[as]
		if !was {
			node = c.nodeOf(&cell)
			asked[as] = node
		}
		return node
	}
}

// NodesChanged has standby cells looked at again: Config.Nodes may answer otherwise.
func (c *Controller) NodesChanged() {
	for _, cell := range c.standbyCells() {
		c.queue.Add(cell.ID)
	}
}

// rename makes the kubelet of a ready cell that of another virtual node, where the cell
// was made for none or for another: a kubelet learns its node's name when it starts. It
// returns true when the kubelet has the name, or when something else is to be done with
// the cell first. Until the agent has its new configuration the old kubelet is refused
// everything, and is never shown the pod.
func (c *Controller) rename(ctx context.Context, e *entry) (ready bool, again time.Duration, err error) {
	if why, _ := c.endingOf(e); why != "" || e.cell().Stopped || e.api == nil {
		return true, 0, nil
	}
	now := c.cfg.Clock.Now()
	if node := c.nodeOf(e.cell()); e.node != node {
		c.cfg.Log.Debug("a cell's kubelet becomes that of another node", "cell", e.id, "node", node, "before", e.node)
		c.dropAside(e, "") // of the kubelet of before
		c.disconnect(e)
		e.renamed = now
	}
	if e.renamed.IsZero() {
		return true, 0, nil
	}
	left := e.timeLeft(e.renamed.Add(readyTimeout + c.cfg.Late.Since(e.renamed)).Sub(now))
	if left <= 0 {
		c.endFor(e, CauseNotReady, fmt.Sprintf("its kubelet was not ready in time as that of node %s: %s", e.node, e.waitsFor()))
		return true, 0, nil
	}
	if err := c.connect(ctx, e); err != nil {
		return false, left, err
	}
	if !c.kubeletReady(e) {
		return false, left, nil // the tunnel and the kubelet wake the cell
	}
	e.renamed = time.Time{}
	return true, 0, nil
}
