package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

// Limit is what a virtual node offers of a catalogue. What is empty is not limited.
type Limit struct {
	Zones, Archs []string
	// LaunchTypes are in the order in which pods get them that do not say.
	LaunchTypes []LaunchType
	// InstanceTypes are names, or patterns with stars.
	InstanceTypes []string
}

// None reports whether nothing is limited.
func (l Limit) None() bool {
	return len(l.Zones)+len(l.Archs)+len(l.LaunchTypes)+len(l.InstanceTypes) == 0
}

// String returns what is left, for people: "zone a, spot".
func (l Limit) String() string {
	var parts []string
	add := func(name string, list []string) {
		if len(list) > 0 {
			parts = append(parts, strings.TrimSpace(name+" "+strings.Join(list, " or ")))
		}
	}
	launch := make([]string, len(l.LaunchTypes))
	for i, t := range l.LaunchTypes {
		launch[i] = string(t)
	}
	add("zone", l.Zones)
	add("", l.Archs)
	add("", launch)
	add("type", l.InstanceTypes)
	return strings.Join(parts, ", ")
}

// Of returns the types that are left, each with the offerings that are. The catalogue
// is not changed.
func (l Limit) Of(types []catalog.InstanceType) []catalog.InstanceType {
	if l.None() {
		return types
	}
	within := func(list []string, word string) bool { return len(list) == 0 || slices.Contains(list, word) }
	var left []catalog.InstanceType
	for _, t := range types {
		if !within(l.Archs, t.Arch) || !l.named(t.Name) {
			continue
		}
		t.Offerings = slices.DeleteFunc(slices.Clone(t.Offerings), func(o catalog.PurchaseOption) bool {
			as := offering.CapacityTypeOf(o.Spot, o.Dedicated)
			return !within(l.Zones, o.Zone) || len(l.LaunchTypes) > 0 && !slices.Contains(l.LaunchTypes, as)
		})
		if len(t.Offerings) > 0 {
			left = append(left, t)
		}
	}
	return left
}

func (l Limit) named(name string) bool {
	return len(l.InstanceTypes) == 0 || slices.ContainsFunc(l.InstanceTypes, func(want string) bool {
		if !strings.Contains(want, "*") {
			return want == name
		}
		return pattern(strings.Split(want, "*")).match(name)
	})
}

// Within is the configuration for the pods of a virtual node of which no more than
// the limit is offered. of is the catalogue before the limit.
func (c Config) Within(l Limit, node string, of []catalog.InstanceType) Config {
	if l.None() {
		return c
	}
	c.Seller = fmt.Sprintf("node %s, which offers %s", node, l)
	c.LaunchTypes = l.LaunchTypes
	switch {
	case len(l.Archs) == 1:
		c.DefaultArch = l.Archs[0]
	case len(l.Archs) > 1:
		c.DefaultArch = ""
	}
	// Pods that ask for nothing get the cheapest where the default is not offered.
	if !slices.ContainsFunc(l.Of(of), func(t catalog.InstanceType) bool { return t.Name == c.DefaultInstanceType }) {
		c.DefaultInstanceType = ""
	}
	return c
}
