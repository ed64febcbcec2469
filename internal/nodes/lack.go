package nodes

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

const (
	// firstHold is how much longer a shortage counts that has come back soon after it was over. It doubles each time. What is
	// known of a shortage ends by itself, whatever the cloud has, so a node would change every few minutes without this.
	firstHold, longestHold = capacity.Cooldown, 15 * time.Minute
	// soonAgain is how soon after its end a shortage counts as one that has come back.
	soonAgain = 2 * longestHold
)

// everything is the kind of all that a node offers.
const everything = "everything"

// kindsOf returns the kinds of an offering. A kind can be out of capacity while the rest of the node's offerings are not.
func kindsOf(t *catalog.InstanceType, o *catalog.PurchaseOption) []string {
	kinds := []string{everything, "zone " + o.Zone, string(offering.CapacityTypeOf(o.Spot, o.Dedicated)), t.Arch}
	for name := range placement.Devices(t) {
		kinds = append(kinds, string(name))
	}
	return kinds
}

// lack is a shortage of one kind on one node.
type lack struct {
	why   string    // for people, while it counts
	held  bool      // it counts
	over  time.Time // since when something can be launched; zero while nothing can
	until time.Time // once it is over, it counts until then at most
	ended time.Time // when it last ceased to count
	again int       // how often in a row it has come back soon
}

// look updates the shortage and reports whether it counts. why says why nothing of the kind can be launched now, and is "" if something
// can; launched is when a machine of the kind was launched last. A shortage counts until something can be launched. One that keeps
// coming back counts for longer, unless a launch succeeds.
func (l *lack) look(now time.Time, why string, launched time.Time) bool {
	switch {
	case why != "":
		if !l.held {
			if l.again++; l.ended.IsZero() || now.Sub(l.ended) > soonAgain {
				l.again = 0
			}
		}
		l.held, l.why, l.over = true, why, time.Time{}
		return true
	case !l.held:
		return false
	case l.over.IsZero():
		if l.over, l.until = now, now; l.again > 0 {
			l.until = now.Add(backoff.Random(nil).After(l.again, firstHold, longestHold))
		}
	}
	if l.held = now.Before(l.until) && !launched.After(l.over); !l.held {
		l.ended = now
	}
	return l.held
}

// forgotten reports whether nothing is left to know of a shortage.
func (l *lack) forgotten(now time.Time) bool { return !l.held && now.Sub(l.ended) > soonAgain }

// lacking tells the scheduler and people what nodes have no capacity for.
type lacking struct {
	nodes *Nodes
	cells Cells
	clock clock.PassiveClock
}

// tell says on a node, and by Events, what nothing can be launched for now.
func (l *lacking) tell(s *served) {
	kinds := l.look(s)
	cfg, now, was := l.nodes.Configuration(), shortage{}, s.short
	if e := s.lacks[everything]; e != nil && e.held && (cfg.Admission.Bursts() || l.elsewhere(s)) {
		now.all = e.why
	}
	if now.all == "" {
		now.some = l.nodes.turning(s)
	}
	s.short = now
	l.note(s, kinds, now)
	s.node.Short(now.why())
	s.node.Lacks(l.condition(s, kinds))
	switch {
	case was == now:
	case now != (shortage{}):
		l.nodes.Event(s.name, events.NewNodeOutOfCapacity(now.why()))
	default:
		l.nodes.Event(s.name, was.over())
	}
}

// condition is that of a node by which it says what nothing can be launched for.
func (*lacking) condition(s *served, kinds []string) (status corev1.ConditionStatus, reason, message string) {
	switch {
	case len(kinds) == 0:
		return corev1.ConditionFalse, events.CapacityAvailable, events.NothingLacks
	case slices.Contains(kinds, everything):
		return corev1.ConditionTrue, events.NothingLaunchable, s.lacks[everything].why
	}
	return corev1.ConditionTrue, events.KindsLack, events.LacksKinds(kinds)
}

// look returns the kinds of what a node offers that count as out of capacity, sorted.
func (l *lacking) look(s *served) (kinds []string) {
	all := l.nodes.nothing(s)
	some := []string{everything}
	if all == "" {
		some = l.nodes.kindsOut(s)
	}
	if s.lacks == nil {
		s.lacks = map[string]*lack{}
	}
	for _, kind := range some {
		if s.lacks[kind] == nil {
			s.lacks[kind] = &lack{}
		}
	}
	if len(s.lacks) == 0 {
		return nil
	}
	now, launched := l.clock.Now(), l.launched(s)
	for kind, lack := range s.lacks {
		why := ""
		switch {
		case kind == everything:
			why = all
		case all != "" && lack.held:
			why = lack.why // what is over is not known before something can be launched
		case slices.Contains(some, kind):
			why = kind
		}
		if lack.look(now, why, launched[kind]) {
			kinds = append(kinds, kind)
		}
	}
	maps.DeleteFunc(s.lacks, func(_ string, l *lack) bool { return l.forgotten(now) })
	slices.Sort(kinds)
	return kinds
}

// launched is when a machine of each kind of what a node offers was launched last, for any node. It is empty where that ends no
// shortage.
func (l *lacking) launched(s *served) map[string]time.Time {
	ends := false
	for _, lack := range s.lacks {
		ends = ends || lack.held && !lack.over.IsZero()
	}
	types, _, err := l.nodes.ofNode(s.name)
	if !ends || err != nil {
		return nil
	}
	byName := make(map[string]*catalog.InstanceType, len(types))
	for i := range types {
		byName[types[i].Name] = &types[i]
	}
	all := map[string]time.Time{}
	for _, cell := range l.cells.List() {
		at := cell.Launched()
		if at.IsZero() || cell.Instance == nil {
			continue
		}
		has := cell.Offering()
		t := byName[has.InstanceType]
		if t == nil {
			continue
		}
		i := slices.IndexFunc(t.Offerings, func(o catalog.PurchaseOption) bool {
			return o.Zone == has.Zone && o.Spot == has.Spot && o.Dedicated == has.Dedicated
		})
		if i < 0 {
			continue
		}
		for _, kind := range kindsOf(t, &t.Offerings[i]) {
			if at.After(all[kind]) {
				all[kind] = at
			}
		}
	}
	return all
}

// elsewhere reports whether another of Kip's nodes can take pods that this one turns away: one that turns none away, and does not
// lack everything either, so that two nodes do not send pods to each other.
func (l *lacking) elsewhere(s *served) bool {
	return slices.ContainsFunc(l.nodes.all(), func(other *served) bool {
		e, is := l.nodes.entryOf(other.name)
		if other == s || !is || e.Removed || l.nodes.rightsOf(other) != rightsHeld {
			return false
		}
		everything := other.lacks[everything]
		return (everything == nil || !everything.held) && other.short == (shortage{}) && l.nodes.nothing(other) == ""
	})
}

// note notes what the capacity of a node, and pods that wait for it, go by.
func (l *lacking) note(s *served, kinds []string, now shortage) {
	if now.all == "" { // pods that can be nowhere else wait on the node: there they are told why, and are the first to have what comes back
		kinds = slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return kind == everything })
	}
	l.nodes.mu.Lock()
	defer l.nodes.mu.Unlock()
	s.out, s.away = kinds, now.why()
}

// without returns types without the offerings of some kinds.
func without(types []catalog.InstanceType, kinds []string) (left []catalog.InstanceType) {
	if len(kinds) == 0 {
		return types
	}
	for _, t := range types {
		t.Offerings = slices.DeleteFunc(slices.Clone(t.Offerings), func(o catalog.PurchaseOption) bool {
			return slices.ContainsFunc(kindsOf(&t, &o), func(kind string) bool { return slices.Contains(kinds, kind) })
		})
		if len(t.Offerings) > 0 {
			left = append(left, t)
		}
	}
	return left
}
