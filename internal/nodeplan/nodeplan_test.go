package nodeplan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/config"
)

var offered = []catalog.InstanceType{
	{Name: "m5", Arch: "amd64", Offerings: []catalog.PurchaseOption{
		{Zone: "b"}, {Zone: "a"}, {Zone: "a", Spot: true}, {Zone: "c", Dedicated: true},
	}},
	{Name: "m6g", Arch: "arm64", Offerings: []catalog.PurchaseOption{{Zone: "a"}}},
}

func configured(t *testing.T, nodes string) *config.Config {
	t.Helper()
	c, _, err := config.Parse("p.yaml", []byte("cloud: {aws: {}}\ncells: {defaultInstanceType: m5}\n"+nodes))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func summary(entries []Entry) string {
	var all []string
	for _, e := range entries {
		s := fmt.Sprintf("%s:%s", e.Name("kip"), e.Limit())
		if e.Removed {
			s += "(removed)"
		}
		all = append(all, s)
	}
	return strings.Join(all, " | ")
}

// next is the plan after a change of the configuration, and after what is stored of it.
func next(t *testing.T, before []Entry, nodes string) []Entry {
	t.Helper()
	wanted, err := Wanted(configured(t, nodes), offered, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := Assign(before, wanted)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	var stored []Entry
	if err := json.Unmarshal(data, &stored); err != nil {
		t.Fatal(err)
	}
	if summary(stored) != summary(entries) {
		t.Errorf("stored %s as %s", summary(entries), data)
	}
	return stored
}

func TestWithoutNodesThereIsTheOneNode(t *testing.T) {
	entries := next(t, nil, "")
	if len(entries) != 1 || entries[0].Name("kip") != "kip" || !entries[0].Plain() || entries[0].CapacityType() != "" {
		t.Errorf("the plan is %+v: want the node by its own name", entries)
	}
}

func TestAnEntryKeepsItsNumber(t *testing.T) {
	a, b := "{zones: [a]}", "{zones: [b]}"
	var entries []Entry
	for _, step := range []struct{ nodes, want string }{
		{"", "kip:"},
		{"nodes: [" + a + ", " + b + "]", "kip:(removed) | kip-1:zone a | kip-2:zone b"},
		{"nodes: [" + b + ", " + a + "]", "kip:(removed) | kip-1:zone a | kip-2:zone b"},
		{"nodes: [" + b + "]", "kip:(removed) | kip-1:zone a(removed) | kip-2:zone b"},
		{"nodes: [{zones: [b], labels: {x: y}}, {launchTypes: [spot]}]", "kip:(removed) | kip-1:zone a(removed) | kip-2:zone b | kip-3:spot"},
		{"nodes: [" + a + ", {launchTypes: [spot]}]", "kip:(removed) | kip-1:zone a | kip-2:zone b(removed) | kip-3:spot"},
		{"nodes: [{suffix: 2, architectures: [arm64]}, {suffix: 0}]", "kip: | kip-1:zone a(removed) | kip-2:arm64 | kip-3:spot(removed)"},
		{"nodes: [{suffix: 2, zones: [a], labels: {x: y}}, " + a + "]", "kip:(removed) | kip-1:zone a | kip-2:zone a | kip-3:spot(removed)"},
		{"", "kip: | kip-1:zone a(removed) | kip-2:zone a(removed) | kip-3:spot(removed)"},
	} {
		if entries = next(t, entries, step.nodes); summary(entries) != step.want {
			t.Errorf("%s makes %s, want %s", step.nodes, summary(entries), step.want)
		}
	}
	// Numbers of nodes that are gone are free again.
	gone := slices.DeleteFunc(entries, func(e Entry) bool { return e.Removed })
	if got := summary(next(t, gone, "nodes: [{suffix: 0}, "+b+"]")); got != "kip: | kip-1:zone b" {
		t.Errorf("after the nodes were gone: %s", got)
	}
}

func TestAutoMakesANodeForEachZoneArchitectureAndCapacityType(t *testing.T) {
	entries := next(t, []Entry{{Number: 1, Identity: "x"}}, "nodes: auto")
	want := "kip-1:(removed) | kip-2:zone a, amd64, on-demand or dedicated | kip-3:zone a, amd64, spot | " +
		"kip-4:zone a, arm64, on-demand or dedicated | kip-5:zone b, amd64, on-demand or dedicated"
	if got := summary(entries); got != want {
		t.Errorf("auto makes %s, want %s", got, want)
	}
	if types := []string{entries[1].CapacityType(), entries[2].CapacityType()}; !slices.Equal(types, []string{"on-demand", "spot"}) {
		t.Errorf("capacity types %v", types)
	}
	if again := summary(next(t, entries, "nodes: auto")); again != want {
		t.Errorf("auto makes then %s, want the same", again)
	}
}

func TestZonesMakesANodeForEachOfSeveralZonesBesideTheOneForAll(t *testing.T) {
	c := configured(t, "nodes: zones")
	in := func(zones ...string) (types []catalog.InstanceType) {
		for _, zone := range zones {
			offerings := []catalog.PurchaseOption{{Zone: zone}, {Zone: zone, Spot: true}}
			types = append(types, catalog.InstanceType{Name: "t" + zone, Arch: "amd64", Offerings: offerings})
		}
		return types
	}
	var entries []Entry
	for _, step := range []struct {
		zones []string
		want  string
	}{
		{[]string{"a"}, "kip:"},
		{nil, "kip:"},
		{[]string{"b", "a"}, "kip: | kip-1:zone a | kip-2:zone b"},
		{[]string{"a", "b", "c"}, "kip: | kip-1:zone a | kip-2:zone b | kip-3:zone c"},
		// One answer of a cloud takes nothing away.
		{[]string{"c"}, "kip: | kip-1:zone a | kip-2:zone b | kip-3:zone c"},
		{nil, "kip: | kip-1:zone a | kip-2:zone b | kip-3:zone c"},
	} {
		wanted, err := Wanted(c, in(step.zones...), entries)
		if err != nil {
			t.Fatal(err)
		}
		if entries, err = Assign(entries, wanted); err != nil {
			t.Fatal(err)
		}
		if got := summary(entries); got != step.want {
			t.Errorf("zones %v make %s, want %s", step.zones, got, step.want)
		}
	}
}

func TestWhatCannotBeIsNamed(t *testing.T) {
	many := slices.Clone(offered)
	for n := range 500 {
		offerings := []catalog.PurchaseOption{{Zone: fmt.Sprint("z", n)}}
		many = append(many, catalog.InstanceType{Name: fmt.Sprint("t", n), Arch: "amd64", Offerings: offerings})
	}
	for _, c := range []struct {
		nodes   string
		offered []catalog.InstanceType
		want    string
	}{
		{"nodes: [{zones: [a]}, {zones: [a, mars]}]", offered,
			`p.yaml:3: nodes[1].zones[1]: "mars" is not valid: want a zone of cloud.aws here: a, b, c`},
		{"nodes: [{zones: [mars]}]", many, "z0, z1, z10, z100, z101, z102, z103 and 493 more"},
		{"nodes:\n- {zones: [b], architectures: [arm64]}", offered,
			"p.yaml:4: nodes[0]: offers nothing: cloud.aws has no instance type with zone b, arm64"},
		{"nodes: auto", many, "p.yaml:3: nodes: auto makes 504 virtual nodes here"},
		{"nodes: zones", many, "p.yaml:3: nodes: zones makes 504 virtual nodes here, one for each zone, and one for all, of cloud.aws"},
	} {
		if _, err := Wanted(configured(t, c.nodes), c.offered, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.nodes, err, c.want)
		}
	}
	var full []Entry
	for n := range config.MaxNodes {
		full = append(full, Entry{Number: n + 1, Identity: fmt.Sprint(n)})
	}
	_, err := Assign(full, []config.Node{{Zones: []string{"a"}}})
	if err == nil || !strings.Contains(err.Error(), "no number up to 64 is free") {
		t.Errorf("a 65th node: %v", err)
	}
}

func TestTheZoneOfANodeIsTheOnlyOneOfItsCells(t *testing.T) {
	for nodes, want := range map[string]string{
		"nodes: [{zones: [b]}]": "b", "nodes: [{zones: [a, b]}]": "", "nodes: [{architectures: [arm64]}]": "a", "nodes: [{suffix: 1}]": "",
	} {
		e := next(t, []Entry{{Number: 9, Identity: "x"}}, nodes)[0]
		if got := e.Zone(e.Limit().Of(offered)); got != want {
			t.Errorf("%s is in zone %q, want %q", nodes, got, want)
		}
	}
}
