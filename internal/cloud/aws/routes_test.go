package aws

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

var routes = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}

func TestRoutesAreInTheTablesOfTheCellsSubnets(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	got, err := runLaunch(t.Context(), c, request("t", 1)).All()
	if err != nil {
		t.Fatal(err)
	}
	id := got[0].ID
	if err := c.Route(t.Context(), id, routes); err != nil {
		t.Fatal(err)
	}
	want := []ec2.Route{{Table: "rtb-main-" + vpc, To: routes[0], Instance: id}, {Table: "rtb-private-" + vpc, To: routes[0], Instance: id}}
	if made := model.Routing.Routes(); !slices.Equal(made, want) || !model.Routing.Forwards(id) {
		t.Errorf("%v, forwards %v: want %v", made, model.Routing.Forwards(id), want)
	}
	only := settings(c.cfg.Endpoint)
	only.Subnets = []string{privateSubnet}
	if err := open(t, only).Route(t.Context(), id, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}); err != nil {
		t.Fatal(err)
	}
	if made := model.Routing.Routes(); len(made) != 3 || made[2].Table != "rtb-private-"+vpc {
		t.Errorf("of one subnet: %v", made)
	}
}

// Who only ends is told no VPC, and does not know whose a route is that leads nowhere.
func TestWhoOnlyEndsTakesRoutesToTheInstanceBackInAnyVPC(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	got, err := runLaunch(t.Context(), c, request("t", 1)).All()
	if err != nil {
		t.Fatal(err)
	}
	id, dead := got[0].ID, ec2.Route{Table: "rtb-main-" + vpc, To: netip.MustParsePrefix("203.0.113.0/24"), Instance: "i-gone"}
	model.Routing.AddRoute(dead)
	if err := c.Route(t.Context(), id, routes); err != nil {
		t.Fatal(err)
	}
	ends := settings(c.cfg.Endpoint)
	ends.VPC, ends.EndsOnly = "", true
	err = open(t, ends).Unroute(t.Context(), id, []netip.Prefix{dead.To})
	if err != nil || !slices.Equal(model.Routing.Routes(), []ec2.Route{dead}) {
		t.Errorf("%v, %v", model.Routing.Routes(), err)
	}
	ends.AccessKeyID, ends.SecretAccessKey = "", ""
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	if _, err := New(t.Context(), ends); err == nil || !strings.Contains(err.Error(), "want AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") {
		t.Errorf("without credentials: %v", err)
	}
}

// The routes of others stay, wherever they lead.
func TestRoutesOfOthersStay(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	got, err := runLaunch(t.Context(), c, request("t", 2)).All()
	if err != nil {
		t.Fatal(err)
	}
	mine, other := got[0].ID, got[1].ID
	table := "rtb-main-" + vpc
	elsewhere := ec2.Route{Table: table, To: netip.MustParsePrefix("198.51.100.0/24"), Instance: other}
	dead := ec2.Route{Table: table, To: netip.MustParsePrefix("203.0.113.0/24"), Instance: "i-gone"}
	model.Routing.AddRoute(elsewhere)
	model.Routing.AddRoute(dead)
	var taken *cloud.RouteTakenError
	to := func(r ec2.Route) []netip.Prefix { return []netip.Prefix{r.To} }
	for _, there := range []ec2.Route{elsewhere, dead} {
		err := c.Route(t.Context(), mine, to(there))
		if !errors.As(err, &taken) || taken.Table != table || taken.To != there.To {
			t.Errorf("%v: %v", there, err)
		}
	}
	// Only who has made a route that leads nowhere knows whose it was.
	if err := c.Unroute(t.Context(), mine, to(elsewhere)); err != nil || !slices.Equal(model.Routing.Routes(), []ec2.Route{elsewhere, dead}) {
		t.Errorf("%v, %v", model.Routing.Routes(), err)
	}
	if err := c.Unroute(t.Context(), mine, to(dead)); err != nil || !slices.Equal(model.Routing.Routes(), []ec2.Route{elsewhere}) {
		t.Errorf("%v, %v", model.Routing.Routes(), err)
	}
	// One to IPv6 is not Kip's, which has no words to take it back.
	six := ec2.Route{Table: table, To: netip.MustParsePrefix("2001:db8::/64"), Instance: mine}
	model.Routing.AddRoute(six)
	if err := c.Unroute(t.Context(), mine, nil); err != nil || !slices.Equal(model.Routing.Routes(), []ec2.Route{elsewhere, six}) {
		t.Errorf("%v, %v", model.Routing.Routes(), err)
	}
	// What leads through EC2's own gateway is nobody's to take.
	anything := ec2.Route{To: netip.MustParsePrefix("0.0.0.0/0")}
	if err := c.Route(t.Context(), mine, to(anything)); !errors.As(err, &taken) || taken.Target != "igw-1" {
		t.Errorf("the default route: %v", err)
	}
}
