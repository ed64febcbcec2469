package nodes

import (
	"context"
	"net/netip"
	"slices"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/version"
	corev1 "k8s.io/api/core/v1"
)

// objects makes what the API server sees of nodes.
type objects struct {
	c      Config
	nodes  *registry
	labels *labels
}

// of makes the virtual node of an entry, as a configuration has it. It has no effect
// outside.
func (o *objects) of(cfg *config.Config, s *served, e nodeplan.Entry) (*node.Node, error) {
	addresses, err := o.c.Flags.Addresses()
	if err != nil {
		return nil, err
	}
	taint, err := o.c.Flags.Taint()
	if err != nil {
		return nil, err
	}
	c, err := o.labels.described(cfg, s.name, e)
	if err != nil {
		return nil, err
	}
	c.Own, c.Node = o.c.Client, s.asNode
	c.Capacity, c.Awaited = o.capacityOf(cfg, s, e)
	c.Taint, c.Taints = taint, taintsOf(cfg, e)
	c.Removed = e.Removed
	c.Adopts = e.Number == 0
	c.InternalIP, c.SecondIP = addresses[0], second(addresses)
	c.Port = uint16(portOf(o.c.KubeletPort, e.Number))
	c.Version = version.String()
	c.Healthy = o.healthy(s)
	c.Log = o.c.Log
	return node.New(c)
}

// capacityOf is that of a node that is made now, and the resources of it that are not known yet.
func (o *objects) capacityOf(cfg *config.Config, s *served, e nodeplan.Entry) (list corev1.ResourceList, awaited []corev1.ResourceName) {
	list, auto := cfg.CapacityOf(e.Node)
	o.nodes.mu.Lock()
	found := s.found
	o.nodes.mu.Unlock()
	if found == nil {
		return list, auto
	}
	for _, r := range auto {
		list[r] = found[r]
	}
	return list, nil
}

// healthy says why a node is not Ready.
func (o *objects) healthy(s *served) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := o.c.Store.Healthy(ctx); err != nil {
			return err
		}
		if !o.nodes.pods.Listed(s.name) {
			return ErrNotListed
		}
		return nil
	}
}

// taintsOf are those that the configuration gives a node.
func taintsOf(cfg *config.Config, e nodeplan.Entry) (list []corev1.Taint) {
	for _, t := range e.Node.Taints {
		list = append(list, corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	burst := corev1.Taint{Key: node.BurstTaint, Effect: corev1.TaintEffectPreferNoSchedule}
	if cfg.Admission.Bursts() && !slices.ContainsFunc(list, func(t corev1.Taint) bool { return t.MatchTaint(&burst) }) {
		list = append(list, burst)
	}
	return list
}

// numberedPorts is how far the kubelet ports of numbered nodes are from the one of the
// node without: those next to it are Kip's own for metrics, and the cluster's components'.
const numberedPorts = 100

// portOf is where the API server finds the node of a number.
func portOf(base, number int) int {
	if number == 0 {
		return base
	}
	return base + numberedPorts + number
}

// second is the second of addresses, the zero one where there is none.
func second(addresses []netip.Addr) netip.Addr {
	if len(addresses) > 1 {
		return addresses[1]
	}
	return netip.Addr{}
}
