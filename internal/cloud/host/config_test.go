package host

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestConfigErrorsNameTheField(t *testing.T) {
	good := Config{StateDir: "/var/lib/kip", Bridge: "kip1"}
	for want, spoil := range map[string]func(*Config){
		`stateDir is empty`:                            func(c *Config) { c.StateDir = "" },
		`stateDir "/a:b": want a path without comma`:   func(c *Config) { c.StateDir = "/a:b" },
		`bridge "kip-with-a-long-name": want a letter`: func(c *Config) { c.Bridge = "kip-with-a-long-name" },
		`cidr "fd00::/64": want an IPv4 network`:       func(c *Config) { c.CIDR = netip.MustParsePrefix("fd00::/64") },
		`cidr "10.0.0.0/30": want an IPv4 network`:     func(c *Config) { c.CIDR = netip.MustParsePrefix("10.0.0.0/30") },
		`cidr "10.0.0.1/16": want an IPv4 network`:     func(c *Config) { c.CIDR = netip.MustParsePrefix("10.0.0.1/16") },
		`characters too long`:                          func(c *Config) { c.StateDir = "/" + strings.Repeat("x", 240) },
	} {
		c := good
		spoil(&c)
		if _, err := c.WithDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
	c, err := good.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if c.CIDR.String() != "10.110.0.0/16" || c.Bridge != "kip1" || c.Group != "kip1" {
		t.Errorf("defaults: %+v", c)
	}
}

func TestANetworkThatIsNotForMachinesIsRefused(t *testing.T) {
	for _, bad := range []string{"10.0.0.0/8", "::ffff:10.0.0.0/104", "fe80::/64", "ff00::/16", "fd00::/112", "fd00::1/64", "::/0"} {
		cfg := Config{StateDir: "/var/lib/kip", IPv6CIDR: netip.MustParsePrefix(bad)}
		if _, err := cfg.WithDefaults(); err == nil || !strings.Contains(err.Error(), "ipv6CIDR") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestANetworkThatTheHostReachesIsRefused(t *testing.T) {
	route := func(to string) netlink.Route {
		_, dst, err := net.ParseCIDR(to)
		if err != nil {
			t.Fatal(err)
		}
		return netlink.Route{Dst: dst}
	}
	long := route("10.110.3.0/24")
	long.Dst.IP = long.Dst.IP.To16()
	for own, routes := range map[string][]netlink.Route{
		"10.110.0.0/16": {{}, route("0.0.0.0/0"), route("10.109.0.0/16"), long},
		"10.1.2.0/24":   {route("fd00::/16"), route("10.0.0.0/8")},
		"fd00:1::/64":   {route("::/0"), route("fd00:2::/64"), route("fd00:1::/32")},
	} {
		last := len(routes) - 1
		if p, found := overlapping(routes[:last], netip.MustParsePrefix(own)); found {
			t.Errorf("%s overlaps %s", own, p)
		}
		if p, found := overlapping(routes, netip.MustParsePrefix(own)); !found || p.String() != routes[last].Dst.String() {
			t.Errorf("%s overlaps %s, %t; want %s", own, p, found, routes[last].Dst)
		}
	}
}
