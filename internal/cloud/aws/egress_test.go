package aws

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/sim"
)

func prefix(p string) netip.Prefix { return netip.MustParsePrefix(p) }

// wayOf is the way of a subnet in words.
func wayOf(t *testing.T, c *Cloud, subnet string) string {
	t.Helper()
	ways, err := c.Ways(t.Context(), subnet)
	if err != nil {
		t.Fatal(err)
	}
	way, has := ways[subnet]
	if !has {
		return "none"
	}
	words := []string{"private"}
	if way.Internet {
		words[0] = "internet"
	}
	for _, p := range way.Direct {
		words = append(words, p.String())
	}
	return strings.Join(words, " ")
}

func TestPodsReachWhatDoesNotGoThroughTheInternetGatewayDirectly(t *testing.T) {
	const main, private = "rtb-main-" + vpc, "rtb-private-" + vpc
	for what, tc := range map[string]struct {
		networks       []netip.Prefix // of the VPC
		routes         []ec2.Route
		lists          map[string][]netip.Prefix
		public, hidden string // the ways of a public and of a private subnet
	}{
		"nothing else": {public: "internet 10.0.0.0/8", hidden: "private 10.0.0.0/8"},
		"all networks of the VPC": {
			networks: []netip.Prefix{prefix("172.31.0.0/16"), prefix("100.64.0.0/16")},
			public:   "internet 100.64.0.0/16 172.31.0.0/16", hidden: "private 100.64.0.0/16 172.31.0.0/16",
		},
		"peers, transit gateways and VPNs": {
			routes: []ec2.Route{
				{Table: main, To: prefix("192.0.2.0/24"), Target: "pcx-1"}, {Table: main, To: prefix("198.51.100.0/24"), Target: "tgw-1"},
				{Table: main, To: prefix("203.0.113.0/24"), Target: "vgw-1"},
			},
			public: "internet 10.0.0.0/8 192.0.2.0/24 198.51.100.0/24 203.0.113.0/24", hidden: "private 10.0.0.0/8",
		},
		"gateway endpoints": {
			routes: []ec2.Route{{Table: main, List: "pl-s3", Target: "vpce-1"}},
			lists:  map[string][]netip.Prefix{"pl-s3": {prefix("203.0.113.0/25"), prefix("2001:db8::/32"), prefix("198.51.100.0/24")}},
			public: "internet 10.0.0.0/8 198.51.100.0/24 203.0.113.0/25", hidden: "private 10.0.0.0/8",
		},
		"a list that is gone": {
			routes: []ec2.Route{{Table: main, List: "pl-gone", Target: "tgw-1"}},
			public: "internet 10.0.0.0/8", hidden: "private 10.0.0.0/8",
		},
		"the longest prefix wins": {
			routes: []ec2.Route{
				{Table: main, To: prefix("203.0.113.0/24"), Target: "tgw-1"}, {Table: main, To: prefix("203.0.113.128/25"), Target: "igw-1"},
				{Table: main, To: prefix("203.0.113.192/26"), Target: "pcx-1"},
			},
			public: "internet 10.0.0.0/8 203.0.113.0/25 203.0.113.192/26", hidden: "private 10.0.0.0/8",
		},
		"a static route wins over a list, and that over a propagated one": {
			routes: []ec2.Route{
				{Table: main, To: prefix("192.0.2.0/24"), Target: "igw-1"}, {Table: main, To: prefix("192.0.2.0/24"), Target: "vgw-1"},
				{Table: main, To: prefix("198.51.100.0/24"), Target: "vgw-1"}, {Table: main, List: "pl-1", Target: "igw-1"},
				{Table: main, To: prefix("203.0.113.0/24"), Target: "tgw-1"},
			},
			lists:  map[string][]netip.Prefix{"pl-1": {prefix("198.51.100.0/24"), prefix("203.0.113.0/24")}},
			public: "internet 10.0.0.0/8 203.0.113.0/24", hidden: "private 10.0.0.0/8",
		},
		"a NAT gateway translates any address": {
			routes: []ec2.Route{{Table: private, To: prefix("0.0.0.0/0"), Target: "nat-1"}},
			public: "internet 10.0.0.0/8", hidden: "private 0.0.0.0/0",
		},
		"a firewall has the internet gateway behind it": {
			routes: []ec2.Route{{Table: private, To: prefix("0.0.0.0/0"), Target: "vpce-1"}},
			public: "internet 10.0.0.0/8", hidden: "internet 10.0.0.0/8",
		},
		"so may an appliance": {
			routes: []ec2.Route{{Table: private, To: prefix("0.0.0.0/0"), Target: "eni-1"}, {Table: private, To: prefix("192.0.2.0/24"), Target: "eni-1"}},
			public: "internet 10.0.0.0/8", hidden: "internet 10.0.0.0/8 192.0.2.0/24",
		},
	} {
		t.Run(what, func(t *testing.T) {
			account := anAccount(sim.Knobs{})
			account.Networks = map[string][]netip.Prefix{vpc: tc.networks}
			account.Routes, account.PrefixLists = tc.routes, tc.lists
			_, url := serve(t, account)
			c := open(t, settings(url))
			if got := wayOf(t, c, "subnet-a1"); got != tc.public {
				t.Errorf("of a public subnet: %s, want %s", got, tc.public)
			}
			if got := wayOf(t, c, privateSubnet); got != tc.hidden {
				t.Errorf("of a private subnet: %s, want %s", got, tc.hidden)
			}
		})
	}
}

// What changes in the VPC, and what Kip routes itself, is there with the next reading.
func TestTheWaysAreReadAnewEachTime(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	if got, want := wayOf(t, c, "subnet-a1"), "internet 10.0.0.0/8"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	got, err := runLaunch(t.Context(), c, request("t", 1)).All()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Route(t.Context(), got[0].ID, routes); err != nil {
		t.Fatal(err)
	}
	model.Change(func(cfg *ec2.Config) {
		cfg.Networks = map[string][]netip.Prefix{vpc: {prefix("10.0.0.0/8"), prefix("172.20.0.0/16")}}
	})
	if got, want := wayOf(t, c, "subnet-a1"), "internet 10.0.0.0/8 172.20.0.0/16 192.0.2.0/24"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A narrower policy lacks the right.
func TestAPrefixListThatKipMayNotReadIsLeftOut(t *testing.T) {
	text := bytes.ReplaceAll(Policy(), []byte("ec2:GetManagedPrefixListEntries"), []byte("ec2:DescribeRegions"))
	policy, err := ec2.ParsePolicy(text)
	if err != nil {
		t.Fatal(err)
	}
	account := anAccount(sim.Knobs{})
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
	account.Routes = []ec2.Route{
		{Table: "rtb-main-" + vpc, List: "pl-s3", Target: "vpce-1"}, {Table: "rtb-main-" + vpc, To: prefix("192.0.2.0/24"), Target: "pcx-1"},
	}
	account.PrefixLists = map[string][]netip.Prefix{"pl-s3": {prefix("203.0.113.0/24")}}
	_, url := serve(t, account)
	var log bytes.Buffer
	s := settings(url)
	s.Log = slog.New(slog.NewTextHandler(&log, nil))
	c := open(t, s)
	for range 2 {
		if got, want := wayOf(t, c, "subnet-a1"), "internet 10.0.0.0/8 192.0.2.0/24"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if n := strings.Count(log.String(), "list=pl-s3"); n != 1 {
		t.Errorf("it was logged %d times, want once: %s", n, log.String())
	}
}
