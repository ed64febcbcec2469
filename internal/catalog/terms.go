package catalog

import (
	"math"
	"path"
	"slices"
)

// Term is what an operator says of the prices of some types: a discount, a price of their
// own, that they are preferred, or that they are not to be had.
type Term struct {
	// InstanceTypes are names, or patterns in which * stands for any characters; none for
	// all.
	InstanceTypes []string
	// Regions are those in which it holds; none for all.
	Regions []string
	// Spot says that Discount and PricePerHour are about spot, Dedicated that they are about
	// dedicated instances; else they are about all but spot.
	Spot, Dedicated bool
	// Discount is a share of the price, 0 to less than 1.
	Discount float64
	// PricePerHour is in dollars; 0 for none of one's own.
	PricePerHour float64
	// Prefer is how much dearer, as a share, such a type may be and is chosen still.
	Prefer  float64
	Exclude bool
}

func (t Term) holds(instanceType, region string) bool {
	named := func(p string) bool {
		ok, err := path.Match(p, instanceType)
		return ok && err == nil
	}
	return (len(t.InstanceTypes) == 0 || slices.ContainsFunc(t.InstanceTypes, named)) &&
		(len(t.Regions) == 0 || slices.Contains(t.Regions, region))
}

// Apply returns the types as the terms leave them. Of several terms with a price for an
// offering the first counts; of several that prefer a type, the one that prefers it most.
// The catalogue is not changed.
func Apply(terms []Term, types []InstanceType, region string) []InstanceType {
	if len(terms) == 0 {
		return types
	}
	var left []InstanceType
	for _, t := range types {
		held := slices.DeleteFunc(slices.Clone(terms), func(term Term) bool { return !term.holds(t.Name, region) })
		if slices.ContainsFunc(held, func(term Term) bool { return term.Exclude }) {
			continue
		}
		t.Offerings = slices.Clone(t.Offerings)
		for i := range t.Offerings {
			o := &t.Offerings[i]
			at := slices.IndexFunc(held, func(term Term) bool {
				return term.Spot == o.Spot && (!term.Dedicated || o.Dedicated) && (term.Discount > 0 || term.PricePerHour > 0)
			})
			if at < 0 {
				continue
			}
			if own := held[at].PricePerHour; own > 0 {
				o.PricePerHour, o.Unpriced, o.OrderedAt = own, false, 0
			} else {
				o.PricePerHour *= 1 - held[at].Discount
				o.OrderedAt *= 1 - held[at].Discount
			}
		}
		for _, term := range held {
			t.Prefer = math.Max(t.Prefer, term.Prefer)
		}
		left = append(left, t)
	}
	return left
}
