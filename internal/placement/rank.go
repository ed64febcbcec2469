package placement

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

// Ranks are the choices of a pod, the preferred first: the entries of an ordered list of instance-requirements, and of each its launch
// types.
type Ranks struct {
	// Of is the rank of each offering that was asked about, from 1; 0 of one that the pod does not ask for.
	Of []int
	// WhyNot is why nothing of each rank can be launched now; nil where something can.
	WhyNot []error
}

// Standing is where a machine that a pod has stands among the pod's ranks.
type Standing struct {
	Rank, Of int
	// WhyNot is why nothing of each better rank can be launched now; nil where something can.
	WhyNot []error
	// MovesBack is when the pod is evicted if something better can be launched then; zero if it is not.
	MovesBack time.Time
}

// Rank returns the ranks of a pod, and those of offerings. It does not judge whether these are large enough for the pod, or what they
// cost: one on which the pod runs has its rank, whatever has become of its price. The errors are *InvalidAnnotationError.
func (p *Placer) Rank(pod *corev1.Pod, keys []offering.Key, unavailable func(offering.Key) bool) (Ranks, error) {
	all, err := p.choicesFor(pod)
	if err != nil {
		return Ranks{}, err
	}
	var ranks choices
	for _, c := range all {
		for _, m := range c.capacityTypes {
			one := *c
			one.capacityTypes = []*capacityType{m}
			ranks = append(ranks, &one)
		}
	}
	var r Ranks
	for _, key := range keys {
		r.Of = append(r.Of, 1+slices.IndexFunc(ranks, func(c *choice) bool { return c.isAskedFor(key) }))
	}
	for _, c := range ranks {
		_, err := c.offerings(unavailable)
		r.WhyNot = append(r.WhyNot, err)
	}
	return r, nil
}

// isAskedFor reports whether an offering is one that a pod asks for that is launched in one way.
func (c *choice) isAskedFor(key offering.Key) bool {
	m := c.capacityTypes[0]
	typ, known := slices.BinarySearchFunc(c.types, key.InstanceType, func(t catalog.InstanceType, name string) int {
		return strings.Compare(t.Name, name)
	})
	zone := slices.Index(c.zones, key.Zone)
	if !known || zone < 0 || m.rowOf[typ] < 0 || m.launchType != offering.CapacityTypeOf(key.Spot, key.Pool == catalog.Dedicated) {
		return false
	}
	return c.asked(&m.rows[m.rowOf[typ]], &m.sizes[m.rowOf[typ]], zone)
}
