package cellapi

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/daemonsets"
)

// ObservePorts adds an observer of what HostPorts returns.
func (s *Server) ObservePorts(o daemonsets.PortObserver) {
	if s.sets == nil {
		return
	}
	s.sets.mu.Lock()
	defer s.sets.mu.Unlock()
	s.sets.ports = append(s.sets.ports, o)
}

// portsChanged has the observers of host ports told, if a set's pod may have any. c.mu may be held.
func (c *boundPod) portsChanged(set *corev1.Pod) {
	if !set.Spec.HostNetwork {
		return
	}
	c.server.sets.mu.Lock()
	observers := c.server.sets.ports
	c.server.sets.mu.Unlock()
	for _, o := range observers {
		o.HostPortsChanged(c.id)
	}
}

// HostPorts are the ports at which copies of the machine's network say that they listen, sorted, without those that are
// the cell's own.
func (s *Server) HostPorts(cell string) (ports []agentapi.Ports) {
	s.mu.Lock()
	c := s.cells[cell]
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	c.boundPod.mu.Lock()
	defer c.boundPod.mu.Unlock()
	for _, p := range c.copies.all {
		if !p.set.pod.Spec.HostNetwork {
			continue // the CNI plugins lead to their ports
		}
		daemonsets.HostPorts(p.set.pod, func(protocol corev1.Protocol, number int32) {
			if port := uint16(number); number > 0 && number < 1<<16 && !slices.Contains(agentapi.OwnPorts, port) {
				ports = append(ports, agentapi.Ports{Protocol: string(protocol), First: port, Last: port})
			}
		})
	}
	slices.SortFunc(ports, func(a, b agentapi.Ports) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
	return slices.Compact(ports)
}
