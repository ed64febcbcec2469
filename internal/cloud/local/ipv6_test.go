package local

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addressesOf are the IPv6 addresses of the bridge.
func addressesOf(t *testing.T, cfg Config) (all []string) {
	t.Helper()
	bridge, err := netlink.LinkByName(cfg.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	list, err := netlink.AddrList(bridge, unix.AF_INET6)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() {
			all = append(all, a.IPNet.String())
		} else {
			all = append(all, "link-local")
		}
	}
	return all
}

// A link-local address would be a way around all that guards the IPv4 one.
func TestWithoutAnIPv6NetworkThereIsNoIPv6(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	if i.ManagementIPv6.IsValid() || i.PodIPv6.IsValid() {
		t.Errorf("instance %+v", i)
	}
	if got := run(t, i.ManagementIP, "grep -vc ' lo$' /proc/net/if_inet6 || true"); got != "0" {
		t.Errorf("the machine has %s IPv6 addresses", got)
	}
	if all := addressesOf(t, cfg); len(all) > 0 {
		t.Errorf("the bridge has %v", all)
	}
}

func TestMachinesReachEachOtherByIPv6(t *testing.T) {
	cfg := testHost(t)
	cfg.IPv6CIDR = ours(t).IPv6CIDR
	gateway := cfg.IPv6CIDR.Addr().Next().String()
	c := open(t, cfg)
	a, b := launch(t, c, request("a")), launch(t, c, request("b"))
	run(t, b.ManagementIP,
		"echo from b > /srv/name; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad; ip addr add "+b.PodIPv6.String()+"/128 dev eth0")
	for _, ip := range []netip.Addr{b.ManagementIPv6, b.PodIPv6} {
		if got := run(t, a.ManagementIP, fmt.Sprintf("wget -q -O - http://[%s]:8080/name", ip)); got != "from b" {
			t.Errorf("a asks %s: %q", ip, got)
		}
		if got := run(t, ip, "hostname"); got != b.ID {
			t.Errorf("host asks %s: %q, want %q", ip, got, b.ID)
		}
	}
	if got := run(t, a.ManagementIP, "ip -6 route show default; cat /proc/sys/net/ipv6/conf/eth0/accept_ra"); !strings.Contains(got,
		gateway) || !strings.HasSuffix(got, "0") {
		t.Errorf("the machine's way out, and whether it listens to routers: %q", got)
	}
	if all := addressesOf(t, cfg); !strings.Contains(strings.Join(all, " "), gateway+"/64") {
		t.Errorf("the bridge has %v", all)
	}

	// Its own records and bridge are found again; another network is refused, none turns IPv6 off.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	other := cfg
	other.IPv6CIDR = netip.MustParsePrefix("fd10:1::/64")
	if _, err := New(other); err == nil || !strings.Contains(err.Error(), "ipv6CIDR") {
		t.Errorf("another network: %v", err)
	}
	c = open(t, cfg)
	listing, err := c.List(t.Context(), "me")
	found := listing.Instances
	if err != nil || len(found) != 2 || found[0].ManagementIPv6 != a.ManagementIPv6 && found[0].ManagementIPv6 != b.ManagementIPv6 {
		t.Errorf("found again: %+v, %v", found, err)
	}
	stop(t, c, a.ID, b.ID)
	start(t, c, a.ID)
	if got := run(t, a.ManagementIPv6, "hostname"); got != a.ID {
		t.Errorf("host asks %s of the machine that was stopped: %q, want %q", a.ManagementIPv6, got, a.ID)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.IPv6CIDR = netip.Prefix{}
	c = open(t, cfg)
	start(t, c, b.ID) // after the network has gone
	if got := run(t, b.ManagementIP, "grep -vc ' lo$' /proc/net/if_inet6 || true"); got != "0" {
		t.Errorf("the machine still has %s IPv6 addresses", got)
	}
	listing, err = c.List(t.Context(), "me")
	found = listing.Instances
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	for _, i := range found {
		if want := i.ID == a.ID; i.ManagementIPv6.IsValid() != want || i.PodIPv6.IsValid() != want {
			t.Errorf("of the machines, only the one that was started before has IPv6: %+v", i)
		}
	}
	if all := addressesOf(t, cfg); len(all) > 0 {
		t.Errorf("the bridge still has %v", all)
	}
}
