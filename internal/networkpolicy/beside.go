package networkpolicy

import (
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/daemonsets"
)

// beside returns by what the agent is to tell the pod from others on its machine; nil where there are none. An agent that
// does not know of that refuses rules that tell of it. The lock is held.
func (c *Controller) beside(x *cell, a *agent) *agentapi.Beside {
	if c.cfg.Beside == nil || !a.beside {
		return nil
	}
	return &agentapi.Beside{PodUID: string(x.Pod.UID), HostPorts: c.cfg.Beside.HostPorts(x.ID)}
}

// HostPortsChanged has the rules of a cell made of its ports as they are now. It does not block.
func (c *Controller) HostPortsChanged(cell string) { c.queue.Add(cell) }

var _ daemonsets.PortObserver = (*Controller)(nil)

// found tells what rules that are in force say of pods beside the cell's, whatever is known of others. The lock is held.
func (c *Controller) found(x *cell, inForce agentapi.FirewallStatus) {
	switch {
	case c.cfg.Beside == nil || !inForce.Beside:
	case inForce.Digest != "" && inForce.PodUID == string(x.Pod.UID):
		c.cfg.Beside.RunsBeside(x.ID, true)
	default:
		c.cfg.Beside.RunsNone(x.ID)
	}
}
