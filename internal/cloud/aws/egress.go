package aws

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"go4.org/netipx"

	"github.com/elotl/kip/internal/cloud"
)

// egress reads how subnets reach other networks.
type egress struct {
	*base
	networks    *networks
	unreadLists sync.Map // prefix lists that could not be read, by ID, and were told of
}

// Ways implements cloud.Egress, by the route tables of the VPC. Each has a local route for each
// network of the VPC, and an internet gateway translates the primary address of an interface alone.
// Sources: Amazon VPC User Guide, "Route table concepts"; Amazon EKS User Guide, on the VPC CNI's SNAT.
func (e *egress) Ways(ctx context.Context, subnets ...string) (map[string]cloud.Way, error) {
	n, err := e.networks.where(ctx)
	if err != nil {
		return nil, err
	}
	tables, err := e.routeTables(ctx, n.vpc)
	if err != nil {
		return nil, err
	}
	lists := prefixLists{egress: e, known: map[string][]netip.Prefix{}}
	ways := map[string]cloud.Way{}
	for _, id := range subnets {
		table, has := tableOf(tables, id)
		if !has {
			continue
		}
		if ways[id], err = wayBy(ctx, table, lists); err != nil {
			return nil, fmt.Errorf("read where the routes of %s lead: %w", aws.ToString(table.RouteTableId), err)
		}
	}
	return ways, nil
}

// tableOf returns the table by which a subnet sends: its own, or the main one.
func tableOf(tables []types.RouteTable, subnet string) (table types.RouteTable, has bool) {
	for _, t := range tables {
		for _, a := range t.Associations {
			switch {
			case aws.ToString(a.SubnetId) == subnet:
				return t, true
			case aws.ToBool(a.Main):
				table, has = t, true
			}
		}
	}
	return table, has
}

// destination is one network of a route.
type destination struct {
	to       netip.Prefix
	priority int // among routes to the same network; the highest wins
	internet bool
}

// wayBy returns the way by one table. The longest prefix wins; of routes to the same network a static
// one, then one by a prefix list, then one that is propagated. Source: Amazon VPC User Guide, "How route
// priority works".
func wayBy(ctx context.Context, table types.RouteTable, lists prefixLists) (way cloud.Way, err error) {
	var all []destination
	for _, r := range table.Routes {
		d := destination{internet: leadsToInternet(r), priority: 2}
		networks := []netip.Prefix{}
		switch to, err := netip.ParsePrefix(aws.ToString(r.DestinationCidrBlock)); {
		case err == nil:
			networks = append(networks, to)
		case r.DestinationPrefixListId != nil:
			d.priority = 1
			if networks, err = lists.read(ctx, *r.DestinationPrefixListId); err != nil {
				return cloud.Way{}, err
			}
		}
		if r.Origin == types.RouteOriginEnableVgwRoutePropagation || r.Origin == types.RouteOriginAdvertisement {
			d.priority = 0
		}
		for _, d.to = range networks {
			if d.to.Addr().Is4() {
				all, way.Internet = append(all, d), way.Internet || d.internet
			}
		}
	}
	slices.SortStableFunc(all, func(a, b destination) int {
		return cmp.Or(cmp.Compare(a.to.Bits(), b.to.Bits()), cmp.Compare(a.priority, b.priority))
	})
	var direct netipx.IPSetBuilder
	for _, d := range all { // the later ones win
		if d.internet {
			direct.RemovePrefix(d.to)
		} else {
			direct.AddPrefix(d.to)
		}
	}
	set, err := direct.IPSet()
	if err != nil {
		return cloud.Way{}, err
	}
	way.Direct = set.Prefixes()
	return way, nil
}

// leadsToInternet reports whether a route may end at an internet gateway. A default route to an
// appliance, which is an instance, an interface or the endpoint of a Gateway Load Balancer or of AWS Network
// Firewall, may: behind one that does not translate addresses there is such a gateway. No API tells.
// The cell's own address is right either way, since what answers finds it in the VPC as well. All
// other routes keep the pod's address: NAT gateways, transit gateways and the like take any.
// Source: AWS PrivateLink, "Access an inspection system using a Gateway Load Balancer endpoint".
func leadsToInternet(r types.Route) bool {
	gateway := aws.ToString(r.GatewayId)
	if strings.HasPrefix(gateway, "igw-") {
		return true
	}
	appliance := strings.HasPrefix(gateway, "vpce-") || aws.ToString(r.InstanceId) != "" || aws.ToString(r.NetworkInterfaceId) != ""
	return appliance && aws.ToString(r.DestinationCidrBlock) == "0.0.0.0/0"
}

// prefixLists reads each list once.
type prefixLists struct {
	egress *egress
	known  map[string][]netip.Prefix
}

// codeDenied is what EC2 says of a missing right.
const codeDenied = "UnauthorizedOperation"

// read returns the networks of a list. A list that Kip may not read, or that is gone while a route still
// names it, has none: what goes there leaves with the cell's address, which a gateway endpoint takes, too.
func (l prefixLists) read(ctx context.Context, id string) ([]netip.Prefix, error) {
	if networks, has := l.known[id]; has {
		return networks, nil
	}
	var networks []netip.Prefix
	pages := ec2.NewGetManagedPrefixListEntriesPaginator(l.egress.api, &ec2.GetManagedPrefixListEntriesInput{PrefixListId: aws.String(id)})
	err := eachPage(ctx, pages, func(page *ec2.GetManagedPrefixListEntriesOutput) {
		for _, e := range page.Entries {
			if p, err := netip.ParsePrefix(aws.ToString(e.Cidr)); err == nil {
				networks = append(networks, p)
			}
		}
	})
	gone := strings.HasPrefix(strings.ToLower(codeOf(err)), "invalidprefixlistid.") // EC2 spells it in two ways
	switch {
	case err != nil && !gone && codeOf(err) != codeDenied:
		return nil, fmt.Errorf("read the prefix list %s: %w", id, err)
	case err != nil:
		if _, told := l.egress.unreadLists.LoadOrStore(id, true); !told {
			l.egress.cfg.Log.Warn("a route leads to a prefix list that cannot be read: what pods send there has their cell's address",
				"list", id, "err", err)
		}
	default:
		l.egress.unreadLists.Delete(id)
	}
	l.known[id] = networks
	return networks, nil
}
