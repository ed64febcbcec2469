package stack

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/config"
)

func TestKipsShareTheNetworkInEqualParts(t *testing.T) {
	o := Options{State: "/state", Node: "kip-0", Bridge: "kip0", CIDR: netip.MustParsePrefix("10.110.0.0/16")}
	for n, want := range map[int][]string{
		1: {"kip-0 /state kip0 10.110.0.0/16 10.110.0.1"},
		2: {"kip-0 /state kip0 10.110.0.0/17 10.110.0.1", "kip-1 /state/peers/kip-1 kip0-1 10.110.128.0/17 10.110.128.1"},
		3: {"kip-0 /state kip0 10.110.0.0/18 10.110.0.1", "kip-1 /state/peers/kip-1 kip0-1 10.110.64.0/18 10.110.64.1",
			"kip-2 /state/peers/kip-2 kip0-2 10.110.128.0/18 10.110.128.1"},
	} {
		o.Kips = n
		kips, err := plan(o)
		if err != nil || len(kips) != n {
			t.Errorf("%d Kips are %v, %v", n, kips, err)
			continue
		}
		for i, k := range kips {
			if got := k.node + " " + k.dir + " " + k.bridge + " " + k.cidr.String() + " " + k.address.String(); got != want[i] {
				t.Errorf("Kip %d of %d is %s, want %s", i, n, got, want[i])
			}
		}
	}
	for _, bad := range []Options{
		{Kips: 0, CIDR: o.CIDR}, {Kips: 10, CIDR: o.CIDR}, {Kips: 2, CIDR: netip.MustParsePrefix("10.110.0.0/28")},
		{Kips: 1, VirtualNodes: -1, CIDR: o.CIDR}, {Kips: 1, VirtualNodes: 65, CIDR: o.CIDR},
		{Kips: 1, VirtualNodes: 2, Zones: []string{"a"}, CIDR: o.CIDR}, {Kips: 1, Zones: []string{"a", "a"}, CIDR: o.CIDR},
		{Kips: 1, Zones: []string{"a", ""}, CIDR: o.CIDR}, {Kips: 1, Zones: []string{"a"}, Cloud: CloudAWS, CIDR: o.CIDR},
		{Kips: 1, GPUs: 17, CIDR: o.CIDR}, {Kips: 1, GPUs: -1, CIDR: o.CIDR}, {Kips: 1, GPUs: 1, Cloud: CloudQEMU, CIDR: o.CIDR},
	} {
		if kips, err := plan(bad); err == nil {
			t.Errorf("%d Kips in %s are %v, want an error", bad.Kips, bad.CIDR, kips)
		}
	}
}

func TestTheVirtualNodesOfAKipCanBeConfigured(t *testing.T) {
	k := &kip{node: "kip-0"}
	for name, c := range map[string]struct {
		o      Options
		want   []string
		listed int
	}{
		"none":  {Options{}, []string{"kip-0"}, 0},
		"one":   {Options{VirtualNodes: 1}, []string{"kip-0"}, 0},
		"three": {Options{VirtualNodes: 3}, []string{"kip-0", "kip-0-1", "kip-0-2"}, 3},
		"zones": {Options{VirtualNodes: 1, Zones: []string{"a", "b"}}, []string{"kip-0-1", "kip-0-2"}, 2},
	} {
		o, want, n := c.o, c.want, c.listed
		if got := o.nodeNames(k); !slices.Equal(got, want) {
			t.Errorf("%s: the virtual nodes are %q, want %q", name, got, want)
		}
		list := o.virtualNodes()
		if n == 0 {
			if list != nil {
				t.Errorf("%s: the virtual nodes are listed: %v", name, list)
			}
			continue
		}
		dir := t.TempDir()
		text, err := yaml.Marshal(map[string]any{"nodes": list, "etcd": map[string]any{"internal": map[string]any{"dataDir": dir}},
			"cells": map[string]any{"defaultInstanceType": "small"}, "cloud": map[string]any{"sim": map[string]any{"socket": "/none"}}})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "provider.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		read, _, err := config.Load(file)
		if err != nil || len(read.Nodes) != n {
			t.Fatalf("%s: Kip reads %v, %v", name, read, err)
		}
		for i, zone := range o.Zones {
			if got := read.Nodes[i]; !slices.Equal(got.Zones, []string{zone}) || *got.Suffix != i+1 {
				t.Errorf("%s: the node of zone %s is %+v", name, zone, got)
			}
		}
	}
}

func TestADualStackClusterHasOneKipAndTwoNetworksOfEachFamily(t *testing.T) {
	cells, services := netip.MustParsePrefix("fd10:110::/64"), netip.MustParsePrefix("fd10:96::/112")
	good := Options{State: "/state", Node: "kip-0", Bridge: "kip0", CIDR: netip.MustParsePrefix("10.110.0.0/16"), Kips: 1, IPv6CIDR: cells,
		ServiceIPv6CIDR: services}
	kips, err := plan(good)
	if err != nil || good.checkIPv6() != nil {
		t.Fatal(err, good.checkIPv6())
	}
	if got := kips[0].nodeIP(); got != "10.110.0.1,fd10:110::1" {
		t.Errorf("--node-ip is %s", got)
	}
	for field, spoil := range map[string]func(*Options){
		"--service-ipv6-cidr":         func(o *Options) { o.ServiceIPv6CIDR = netip.Prefix{} },
		"--kips":                      func(o *Options) { o.Kips = 2 },
		"want an IPv6 network":        func(o *Options) { o.ServiceIPv6CIDR = netip.MustParsePrefix("10.96.0.0/16") },
		"overlap: choose others with": func(o *Options) { o.ServiceIPv6CIDR = netip.MustParsePrefix("fd10:110::/112") },
	} {
		o := good
		spoil(&o)
		if err := o.checkIPv6(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
