package networkpolicy

import "github.com/elotl/kip/internal/agentapi"

// beside returns by what the agent is to tell the pod from others on its machine; nil where there are none. An agent that
// does not know of that refuses rules that tell of it. The lock is held.
func (c *Controller) beside(x *cell, a *agent) *agentapi.Beside {
	if c.cfg.Beside == nil || !a.beside {
		return nil
	}
	return &agentapi.Beside{PodUID: string(x.Pod.UID), HostPorts: c.cfg.Beside.HostPorts(x.ID)}
}

// HostPortsChanged tells that Beside.HostPorts may return others for a cell. It does not block.
func (c *Controller) HostPortsChanged(cell string) { c.queue.Add(cell) }
