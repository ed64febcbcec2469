// Package nodeplan owns which virtual nodes there are: from what is configured, what the
// cloud offers and what was stored, it says which nodes Kip serves and by which names, and
// of what the cloud bounds, how much each of them takes.
// It is pure, and must not touch nodes themselves.
//
// A name is that of Kip's node and a number, which an entry of the configuration keeps:
// the pods of a node go on running on it, and their volumes name it. An entry with a
// suffix is known by that number; one without by what it offers. What is configured no
// more keeps its number, too, until the node has no pods.
package nodeplan

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/placement"
)

// Entry is one virtual node.
type Entry struct {
	// Number is in the node's name; 0 for the name without one.
	Number int `json:"number"`
	// Identity is what the entry is known by.
	Identity string `json:"identity"`
	// Node is as it was configured last.
	Node config.Node `json:"node"`
	// Removed says that it is not configured any more.
	Removed bool `json:"removed,omitempty"`
	// Index is the place in the configuration; -1 where it is not in it by itself.
	Index int `json:"-"`
}

// Name is the entry's node, of a Kip with the given node name.
func (e Entry) Name(base string) string { return Name(base, e.Number) }

// Name is the virtual node with a number.
func Name(base string, number int) string {
	if number == 0 {
		return base
	}
	return fmt.Sprintf("%s-%d", base, number)
}

// Plain says that the entry is the one node of a Kip that has no others: it has the
// name itself, and offers all.
func (e Entry) Plain() bool { return e.Number == 0 && e.Limit().None() }

// Limit is what the entry offers.
func (e Entry) Limit() placement.Limit { return limitOf(e.Node) }

func limitOf(n config.Node) placement.Limit {
	l := placement.Limit{Zones: n.Zones, Archs: n.Architectures, InstanceTypes: n.InstanceTypes}
	for _, t := range n.LaunchTypes {
		l.LaunchTypes = append(l.LaunchTypes, placement.LaunchType(t))
	}
	return l
}

// CapacityType is how the entry's cells are bought, in karpenter's words: dedicated
// hosts are bought on demand. It is "" where that is in several ways.
func (e Entry) CapacityType() string {
	spot := slices.Contains(e.Node.LaunchTypes, config.Spot)
	switch {
	case len(e.Node.LaunchTypes) == 0, spot && len(e.Node.LaunchTypes) > 1:
		return ""
	case spot:
		return config.Spot
	}
	return config.OnDemand
}

// Zone is that of all cells of the entry, among those of the types that it offers; ""
// where there are several.
func (e Entry) Zone(offered []catalog.InstanceType) string {
	if len(e.Node.Zones) == 1 {
		return e.Node.Zones[0]
	}
	if in := zonesOf(offered); len(in) == 1 {
		return in[0]
	}
	return ""
}

// Arch is the architecture of all types that the entry offers; "" where there are
// several, or none.
func (e Entry) Arch(offered []catalog.InstanceType) string {
	archs := map[string]bool{}
	for _, t := range offered {
		archs[t.Arch] = true
	}
	if len(archs) != 1 {
		return ""
	}
	return offered[0].Arch
}

// identityOf is what a configured node is known by.
func identityOf(n config.Node) string {
	if n.Suffix != nil {
		return fmt.Sprintf("suffix=%d", *n.Suffix)
	}
	return n.Offers()
}

// plain is the node of a configuration that names none.
func plain() config.Node { return config.Node{Suffix: new(0)} }

// Wanted are the nodes that are configured, given what the cloud offers. A node that was
// there before stays, also where the cloud does not offer it any more: its pods run, and
// one answer of a cloud takes nothing away. The errors are of config.Problem.
func Wanted(c *config.Config, offered []catalog.InstanceType, before []Entry) ([]config.Node, error) {
	was := map[string]bool{}
	for _, e := range before {
		was[e.Identity] = !e.Removed
	}
	switch {
	case c.AutoNodes != "":
		makes, isMade, each := auto, isAuto, "zone, architecture and capacity type"
		if c.AutoNodes == config.NodesZones {
			makes, isMade, each = zones, isZone, "zone, and one for all"
		}
		nodes := makes(offered)
		for _, e := range before {
			is := func(n config.Node) bool { return identityOf(n) == e.Identity }
			if !e.Removed && isMade(e.Node) && !slices.ContainsFunc(nodes, is) {
				nodes = append(nodes, e.Node)
			}
		}
		if n := len(nodes); n > config.MaxNodes {
			return nil, c.Problem("nodes", "%s makes %d virtual nodes here, one for each %s, of cloud.%s: "+
				"want at most %d; list those that are to be", c.AutoNodes, n, each, c.Cloud.Name(), config.MaxNodes)
		}
		return nodes, nil
	case len(c.Nodes) == 0:
		return []config.Node{plain()}, nil
	}
	known := zonesOf(offered)
	for i, n := range c.Nodes {
		if was[identityOf(n)] {
			continue
		}
		key := fmt.Sprintf("nodes[%d]", i)
		for j, zone := range n.Zones {
			if !slices.Contains(known, zone) {
				return nil, c.Problem(fmt.Sprintf("%s.zones[%d]", key, j), "%q is not valid: want a zone of cloud.%s here: %s", zone, c.Cloud.Name(),
					some(known))
			}
		}
		if l := limitOf(n); len(l.Of(offered)) == 0 {
			return nil, c.Problem(key, "offers nothing: cloud.%s has no instance type with %s", c.Cloud.Name(), l)
		}
	}
	return c.Nodes, nil
}

// zonesOf are the zones of what is offered, in order.
func zonesOf(offered []catalog.InstanceType) []string {
	var all []string
	for _, t := range offered {
		for _, o := range t.Offerings {
			all = append(all, o.Zone)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// some are the first of many words.
func some(words []string) string {
	const most = 10
	if len(words) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
	}
	return strings.Join(words, ", ")
}

// zones is the node of all zones, which a Kip without nodes has too, and one for each zone if there are several. Disks that
// were made for pods of the former are bound to its name, so it stays whatever zones come.
func zones(offered []catalog.InstanceType) []config.Node {
	nodes := []config.Node{plain()}
	if in := zonesOf(offered); len(in) > 1 {
		for _, zone := range in {
			nodes = append(nodes, config.Node{Zones: []string{zone}})
		}
	}
	return nodes
}

// isZone says that zones makes such nodes.
func isZone(n config.Node) bool {
	return len(n.Zones) == 1 && reflect.DeepEqual(n, config.Node{Zones: n.Zones})
}

// auto is a node for each zone, architecture and capacity type. What is on dedicated
// hosts is bought on demand, and pods of such a node may ask for it.
func auto(offered []catalog.InstanceType) []config.Node {
	type kind struct{ zone, arch, capacity string }
	kinds := map[kind]bool{}
	for _, t := range offered {
		for _, o := range t.Offerings {
			switch {
			case o.Spot:
				kinds[kind{o.Zone, t.Arch, config.Spot}] = true
			case !o.Dedicated:
				kinds[kind{o.Zone, t.Arch, config.OnDemand}] = true
			}
		}
	}
	var nodes []config.Node
	for _, k := range slices.SortedFunc(maps.Keys(kinds), func(a, b kind) int {
		return cmp.Or(cmp.Compare(a.zone, b.zone), cmp.Compare(a.arch, b.arch), cmp.Compare(a.capacity, b.capacity))
	}) {
		nodes = append(nodes, autoNode(k.zone, k.arch, k.capacity))
	}
	return nodes
}

func autoNode(zone, arch, capacity string) config.Node {
	launch := []string{capacity}
	if capacity == config.OnDemand {
		launch = append(launch, config.Dedicated)
	}
	return config.Node{Zones: []string{zone}, Architectures: []string{arch}, LaunchTypes: launch}
}

// isAuto says that auto makes such nodes.
func isAuto(n config.Node) bool {
	return len(n.Zones) == 1 && len(n.Architectures) == 1 && len(n.LaunchTypes) > 0 &&
		reflect.DeepEqual(n, autoNode(n.Zones[0], n.Architectures[0], n.LaunchTypes[0]))
}

// Assign returns what there is to be, in order of number: what is wanted, each with its
// number, and what was there before and is not wanted any more. before is what was
// stored; nothing stands for the one node of a Kip that names none.
func Assign(before []Entry, wanted []config.Node) ([]Entry, error) {
	if len(before) == 0 {
		before = []Entry{{Identity: identityOf(plain()), Node: plain()}}
	}
	known, taken := map[string]int{}, map[int]Entry{}
	for _, e := range before {
		known[e.Identity] = e.Number
		e.Removed, e.Index = true, -1
		taken[e.Number] = e
	}
	entries := map[int]Entry{}
	put := func(number, index int) {
		entries[number] = Entry{
			Number:   number,
			Identity: identityOf(wanted[index]),
			Node:     wanted[index],
			Index:    index,
		}
	}
	var unnamed []int
	for i, n := range wanted {
		if n.Suffix != nil {
			put(*n.Suffix, i)
		}
	}
	for i, n := range wanted {
		if n.Suffix != nil {
			continue
		}
		if number, was := known[identityOf(n)]; was {
			if _, claimed := entries[number]; !claimed {
				put(number, i)
				continue
			}
		}
		unnamed = append(unnamed, i)
	}
	for number := 1; number <= config.MaxNodes && len(unnamed) > 0; number++ {
		_, claimed := entries[number]
		if _, was := taken[number]; !claimed && !was {
			put(number, unnamed[0])
			unnamed = unnamed[1:]
		}
	}
	if len(unnamed) > 0 {
		return nil, fmt.Errorf("no number up to %d is free for %d of the virtual nodes: those that were taken out keep theirs until their pods end",
			config.MaxNodes, len(unnamed))
	}
	for number, e := range taken {
		if _, claimed := entries[number]; !claimed {
			entries[number] = e
		}
	}
	return slices.SortedFunc(maps.Values(entries), func(a, b Entry) int { return a.Number - b.Number }), nil
}
