package stack

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
)

func TestEachOrdinaryNodeHasAPodNetworkOfItsOwn(t *testing.T) {
	cfg := local.Config{Config: host.Config{StateDir: "/var/lib/kip", CIDR: netip.MustParsePrefix("10.110.0.0/16")}}
	for i, want := range []string{"10.110.248.0/24", "10.110.249.0/24", "10.110.250.0/24"} {
		if got, err := podCIDR(cfg, i); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v; want %s", nodeName(i), got, err, want)
		}
	}
	for cidr, room := range map[string]string{"10.110.0.0/16": "8 ordinary nodes", "10.110.0.0/20": "0 ordinary nodes",
		"10.110.0.0/28": "no room"} {
		cfg.CIDR = netip.MustParsePrefix(cidr)
		if _, err := podCIDR(cfg, 8); err == nil || !strings.Contains(err.Error(), room) || !strings.Contains(err.Error(), cidr) {
			t.Errorf("%s: error %v, want one with %q", cidr, err, room)
		}
	}
}

func TestKipIsInThePodNetworksOfOrdinaryNodesOrAtTheirAddresses(t *testing.T) {
	s := wire(&site{opts: Options{State: "/var/lib/kip", Bridge: "kip0", CellRoot: "/var/lib/kip/cell-root", Nodes: 2},
		kips: []*kip{{cidr: netip.MustParsePrefix("10.110.0.0/16")}}})
	sources, err := s.Nodes.kipSources()
	const want = "[10.110.248.0/24 10.110.120.0/32 10.110.249.0/24 10.110.120.1/32]"
	if got := fmt.Sprint(sources); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}
