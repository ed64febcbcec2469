package placement

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/offering"
)

// Offerings returns the offerings that a pod can be launched on, cheapest first
// (of equal cost: the smaller type, then by name, zone and subnet), at most
// MaxOfferings. Of spot the first are spread, as Config.SpotSpread says. Where a pod
// names several launch types, all offerings of the first come before those of the next, and likewise where its
// requirements are an ordered list.
// What unavailable reports to have no capacity is left out; nil leaves nothing out.
//
// The errors are *InvalidAnnotationError (several may be joined),
// *UnplaceableError and *NoCapacityError.
func (p *Placer) Offerings(pod *corev1.Pod, unavailable func(offering.Key) bool) ([]offering.Offering, error) {
	all, err := p.choicesFor(pod)
	if err != nil {
		return nil, err
	}
	return all.offerings(unavailable)
}

// Chosen is what a pod can be launched on, and why on no other type.
type Chosen struct {
	// Offerings are as Offerings returns them.
	Offerings []offering.Offering
	// RuledOut is why types are not among them, by count.
	RuledOut []Rejection
	// Types is how many types are not ruled out. Of those that come last Offerings may have none.
	Types int
}

// Choose returns the offerings that a pod can be launched on, and why other types are none, for people. It looks at all types:
// whoever does not show them asks for Offerings, which are sooner. The errors are those of Offerings.
func (p *Placer) Choose(pod *corev1.Pod, unavailable func(offering.Key) bool) (chosen Chosen, err error) {
	all, err := p.choicesFor(pod)
	if err != nil {
		return Chosen{}, err
	}
	for _, c := range all {
		c.fit = c.walk(true)
	}
	if chosen.Offerings, err = all.offerings(unavailable); err != nil {
		return Chosen{}, err
	}
	for n, c := range all {
		ruledOut, types := c.ruledOut(unavailable)
		for i := range ruledOut {
			ruledOut[i].Why += all.of(n)
		}
		chosen.RuledOut, chosen.Types = append(chosen.RuledOut, ruledOut...), max(chosen.Types, types)
	}
	return chosen, nil
}

// offerings is Offerings.
func (c *choice) offerings(unavailable func(offering.Key) bool) ([]offering.Offering, error) {
	all, err := c.rank(unavailable)
	if err != nil {
		return nil, err
	}
	list := make([]offering.Offering, len(all))
	for i := range all {
		list[i] = all[i].Offering
	}
	return list, nil
}

// rank is offerings with what they are ordered by.
func (c *choice) rank(unavailable func(offering.Key) bool) ([]ranked, error) {
	if c.fit.rows == nil {
		c.fit = c.walk(false)
	}
	fitting, available := 0, 0
	searched := make([]found, 0, len(c.capacityTypes))
	for i, m := range c.capacityTypes {
		f := c.search(m, c.fit.rows[i], unavailable)
		fitting += f.fitting
		available += len(f.best)
		searched = append(searched, f)
	}
	switch {
	case available > 0:
		return c.best(searched, min(available, MaxOfferings)), nil
	case fitting > 0:
		return nil, c.noCapacity()
	default:
		return nil, c.unplaceable()
	}
}
