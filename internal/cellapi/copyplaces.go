package cellapi

import (
	"cmp"
	"slices"
	"time"

	"github.com/elotl/kip/internal/daemonsets"
)

// copyPlace is what a copy had of its machine, room and host ports, when it ended with its pod. It stays the set's until the next pod of
// the set comes: otherwise a set that was left out would take it in the middle of an update.
//
// Places are in memory alone, and a kubelet does not say which copies it runs before it is shown them. So a Kip that starts between two
// pods of a set lets in one that was left out, if that fits then. The next pod of the set is left out on that cell.
type copyPlace struct {
	set   *setPod
	until time.Time // zero while the pod stands on the node, where other cells may still end their copies
}

// holdPlace holds the place of a copy that has ended with its pod. c.mu is held.
func (c *boundPod) holdPlace(p *copied) {
	name := p.set.setName()
	for _, other := range c.copies.all {
		if other.set.setName() == name {
			return // the next pod of the set runs already
		}
	}
	c.copies.places[name] = &copyPlace{set: p.set}
}

// heldFrom returns the sets whose places another set cannot have, as their last pods were. A node plugin of the pod's volumes may have
// those of all other sets: the pod does not start without it. c.mu is held.
func (c *boundPod) heldFrom(set *setPod) (others []*setPod) {
	plugin := set.terms.HasPlugin(c.drivers)
	for name, place := range c.copies.places {
		if name != set.setName() && (!plugin || place.set.terms.HasPlugin(c.drivers)) {
			others = append(others, place.set)
		}
	}
	slices.SortFunc(others, func(a, b *setPod) int { return daemonsets.Order(a.pod, b.pod) })
	return others
}

// seePlaces gives up the places of sets that have had no pod on the node for a while. c.mu is held.
func (c *boundPod) seePlaces() {
	now := c.server.clock.Now()
	for name, place := range c.copies.places {
		switch {
		case place.until.IsZero() && c.server.sets.has(c.as.name, place.set.pod.UID):
		case place.until.IsZero():
			place.until = now.Add(daemonsets.StartsWithin)
			c.later(daemonsets.StartsWithin, c.seeCopies)
		case !now.Before(place.until):
			delete(c.copies.places, name)
		}
	}
}

// orderCopies compares two sets' pods by which is let in first. c.mu is held.
func (c *boundPod) orderCopies(a, b *setPod) int {
	first := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	}
	return cmp.Or(
		// The machine has room for the node plugins of the pod's volumes, perhaps for no others.
		first(a.terms.HasPlugin(c.drivers), b.terms.HasPlugin(c.drivers)),
		// After the next pod of a set has come, its place is held no longer, and others may have what it leaves.
		first(c.copies.places[a.setName()] != nil, c.copies.places[b.setName()] != nil),
		// The older: a new process of Kip is to let in what runs, not what was left out for it.
		a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time),
	)
}
