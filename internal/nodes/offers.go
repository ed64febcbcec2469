package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
)

// offers is what the nodes offer their pods.
type offers struct {
	nodes     *registry
	types     InstanceTypes
	shortages Shortages
	labels    *labels
	reads     *reads
	log       *slog.Logger
}

// Choose returns what can be launched for a pod by what its node offers, in a zone if one is given, and why nothing else can. Errors
// that are not of package placement say that Kip cannot tell now.
func (f *offers) Choose(ctx context.Context, pod *corev1.Pod, zone string) (chosen placement.Chosen, err error) {
	err = f.ask(ctx, pod, func(p *placement.Placer) (err error) {
		chosen, err = p.Choose(placement.InZone(pod, zone), f.shortages.Unavailable)
		return err
	})
	return chosen, err
}

// Rank returns the ranks of a pod's choices by what its node offers, in a zone if one is given, and those of offerings. Errors are as those
// of Choose.
func (f *offers) Rank(ctx context.Context, pod *corev1.Pod, zone string, keys []offering.Key) (ranks placement.Ranks, err error) {
	err = f.ask(ctx, pod, func(p *placement.Placer) (err error) {
		ranks, err = p.Rank(placement.InZone(pod, zone), keys, f.shortages.Unavailable)
		return err
	})
	return ranks, err
}

// available returns nil if something can be launched for a pod by what its node offers; else the error of Choose.
func (f *offers) available(ctx context.Context, pod *corev1.Pod) error {
	return f.ask(ctx, pod, func(p *placement.Placer) error {
		_, err := p.Offerings(pod, f.shortages.Unavailable)
		return err
	})
}

// ask asks what chooses for a pod. A pod that fits nothing waits for long: a label that it asks for may be newer, so it is
// asked again by newer labels.
func (f *offers) ask(ctx context.Context, pod *corev1.Pod, question func(*placement.Placer) error) (err error) {
	for _, ago := range []time.Duration{f.reads.again, f.reads.soon()} {
		placer, unread := f.placerFor(ctx, pod, ago)
		if unread != nil {
			return unread
		}
		err = question(placer)
		if _, fitsNone := errors.AsType[*placement.UnplaceableError](err); !fitsNone {
			break
		}
	}
	return err
}

// placerFor returns what chooses for a pod on its node, by the node's labels as they were at most so long ago.
func (f *offers) placerFor(ctx context.Context, pod *corev1.Pod, ago time.Duration) (*placement.Placer, error) {
	_, placer, err := f.ofNode(pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	labels, err := f.labels.forPod(ctx, pod, ago)
	if err != nil {
		return nil, err
	}
	return placer.OnNode(labels), nil
}

// ofNode returns what a node offers, and what chooses out of that.
func (f *offers) ofNode(name string) ([]catalog.InstanceType, *placement.Placer, error) {
	entry, _ := f.nodes.entryOf(name)
	return f.types.OfNode(name, entry.Limit())
}

// Zones are those where a node's pods can be, the preferred one first, and the zone
// that the node says it is in, if it is one; false for a node that is not Kip's.
func (f *offers) Zones(name string) (list []string, only string, ours bool) {
	entry, ours := f.nodes.entryOf(name)
	if !ours {
		return nil, "", false
	}
	types, _, err := f.ofNode(name)
	if err != nil {
		f.log.Error("the zones of a virtual node cannot be told", "node", name, "err", err)
		return nil, "", true
	}
	return zonesOf(types), zoneOf(entry), true
}

// zoneOf is where all disks of a node are, as it says of itself, or "". A zone that follows
// from the catalogue may be one of several tomorrow.
func zoneOf(e nodeplan.Entry) string {
	if e.Number > 0 && len(e.Node.Zones) == 1 {
		return e.Node.Zones[0]
	}
	return ""
}

// zonesOf are where the catalogue has offerings, that of the cheapest one first.
func zonesOf(types []catalog.InstanceType) (all []string) {
	var offerings []catalog.PurchaseOption
	for _, t := range types {
		offerings = append(offerings, t.Offerings...)
	}
	slices.SortStableFunc(offerings, func(a, b catalog.PurchaseOption) int {
		return cmp.Or(a.ComparePrice(b), cmp.Compare(a.Zone, b.Zone))
	})
	for _, o := range offerings {
		if !slices.Contains(all, o.Zone) {
			all = append(all, o.Zone)
		}
	}
	return all
}

// StandbyNode is the first node whose pods may be given a standby cell; Kip's own name
// where there is none.
func (f *offers) StandbyNode(o offering.Offering) string {
	name, _ := f.NodeWith(o)
	return name
}

// NodeWith is the first node that offers what a standby cell is, and that Kip may
// serve.
func (f *offers) NodeWith(o offering.Offering) (name string, is bool) {
	t := catalog.InstanceType{Name: o.InstanceType, Offerings: []catalog.PurchaseOption{{Zone: o.Zone, Spot: o.Spot, Dedicated: o.Dedicated}}}
	if types := f.types.Types(); types != nil {
		if i := slices.IndexFunc(types, func(sold catalog.InstanceType) bool { return sold.Name == o.InstanceType }); i >= 0 {
			t.Arch = types[i].Arch
		}
	}
	f.nodes.mu.Lock()
	defer f.nodes.mu.Unlock()
	for _, e := range f.nodes.entries {
		name := e.Name(f.nodes.name)
		if s := f.nodes.served[name]; s == nil || s.rights == rightsMissing || s.rights == rightsForeign {
			continue
		}
		if !e.Removed && len(e.Limit().Of([]catalog.InstanceType{t})) > 0 {
			return name, true
		}
	}
	return f.nodes.name, false
}

// shortage is why nothing that a node offers can be launched now; "" where something can.
func (f *offers) shortage(s *served) string {
	if entry, _ := f.nodes.entryOf(s.name); entry.Plain() {
		return "" // its pods are told one by one, as they ever were
	}
	return f.nothing(s)
}

// nothing is shortage of any node.
func (f *offers) nothing(s *served) string {
	types, _, err := f.ofNode(s.name)
	if err != nil {
		f.log.Error("what a virtual node offers cannot be told", "node", s.name, "err", err)
		return ""
	}
	count := 0
	for _, t := range types {
		for _, o := range t.Offerings {
			count++
			if !f.shortages.Unavailable(offering.KeyOf(&t, &o)) {
				return ""
			}
		}
	}
	if count == 0 {
		return events.NothingSold
	}
	entry, _ := f.nodes.entryOf(s.name)
	return events.NothingAvailable(count, entry.Limit().String())
}

// kindsOut are the kinds of what a node offers of which nothing can be launched now.
func (f *offers) kindsOut(s *served) (kinds []string) {
	types, _, err := f.ofNode(s.name)
	if err != nil || len(f.shortages.List()) == 0 {
		return nil
	}
	can := map[string]bool{}
	for _, t := range types {
		for _, o := range t.Offerings {
			is := !f.shortages.Unavailable(offering.KeyOf(&t, &o))
			for _, kind := range kindsOf(&t, &o) {
				can[kind] = can[kind] || is
			}
		}
	}
	for kind, is := range can {
		if !is {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// mostNamed is how many of a list people are told.
const mostNamed = 5

// offeringsOf says how and where a node offers types, at least one, for people: "large or
// xlarge as spot in zone a".
func (f *offers) offeringsOf(s *served, names []string) string {
	anyOf := func(list []string) string {
		if more := len(list) - mostNamed; more > 0 {
			list = append(slices.Clone(list[:mostNamed]), fmt.Sprintf("%d more", more))
		}
		last := len(list) - 1
		return strings.TrimPrefix(strings.Join(list[:last], ", ")+" or "+list[last], " or ")
	}
	is := anyOf(names)
	if e, _ := f.nodes.entryOf(s.name); e.CapacityType() != "" {
		is += " as " + e.CapacityType()
	}
	types, _, err := f.ofNode(s.name)
	if err != nil { // it was offered a moment ago
		return is
	}
	types = slices.DeleteFunc(slices.Clone(types), func(t catalog.InstanceType) bool { return !slices.Contains(names, t.Name) })
	zones := zonesOf(types)
	slices.Sort(zones)
	if len(zones) > 0 {
		is += " in zone " + anyOf(zones)
	}
	return is
}
