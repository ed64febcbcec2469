package eks

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// perCell is how many addresses a cell takes of its subnet: its own and its pod's.
const perCell = 2

// Network is where cells can be.
type Network struct {
	// Subnets are their IDs. Public says that they have routes to an internet gateway, so that cells need public addresses.
	Subnets []string
	Public  bool
	// Notes are for people: which subnets are left out, and why.
	Notes []string
}

func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: values}
}

// Network chooses the subnets of cells: those that are named, else the cluster's. Of the cluster's it takes the private ones, if there
// are any: their cells need no public address, and reach the internet as the cluster's nodes there do. What is full does not change
// that choice. A full subnet is left out, unless it is among installed, the subnets of a Kip that runs.
func (a *Account) Network(ctx context.Context, c Cluster, named, installed []string) (Network, error) {
	wanted := c.Subnets
	if len(named) > 0 {
		wanted = named
	}
	out, err := a.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{Filters: []types.Filter{filter("subnet-id", wanted...)}})
	if err != nil {
		return Network{}, fmt.Errorf("describe the subnets %s: %w", strings.Join(wanted, ", "), explain(err, a.Region))
	}
	wayOf, err := a.ways(ctx, c.VPC)
	if err != nil {
		return Network{}, err
	}
	of := map[way][]types.Subnet{}
	seen := map[string]bool{}
	for _, s := range out.Subnets {
		id := aws.ToString(s.SubnetId)
		seen[id] = true
		if aws.ToString(s.VpcId) != c.VPC {
			return Network{}, fmt.Errorf("subnet %s is in %s, and the cluster in %s: want subnets of the cluster's VPC", id,
				aws.ToString(s.VpcId), c.VPC)
		}
		of[wayOf(id)] = append(of[wayOf(id)], s)
	}
	for _, id := range wanted {
		if !seen[id] {
			return Network{}, fmt.Errorf("EC2 shows no subnet %s in %s: want subnets of %s", id, a.Region, c.VPC)
		}
	}
	n, taken, err := choose(of, len(named) > 0, c.VPC)
	if err != nil {
		return n, err
	}
	err = n.fill(taken, installed, c.VPC)
	return n, err
}

// choose returns the subnets that are taken, by their ways, full ones included.
func choose(of map[way][]types.Subnet, named bool, vpc string) (n Network, taken []types.Subnet, err error) {
	n, taken = Network{Public: len(of[public]) > 0}, slices.Concat(of[private], of[public], of[isolated])
	switch {
	case named:
		if len(of[isolated]) > 0 {
			n.Notes = append(n.Notes, fmt.Sprintf("%s: no default route, so cells there reach images and AWS by endpoints of the VPC alone",
				ids(of[isolated])))
		}
	case len(of[private]) > 0:
		taken, n.Public = of[private], false
	case n.Public:
		taken = of[public]
	default:
		return n, nil, fmt.Errorf("no subnet of the cluster (%s) has a default route, so cells would reach neither images nor AWS: add a route of "+
			"0.0.0.0/0 to a NAT gateway, or name other subnets of %s: --subnets (these, if the VPC has endpoints for all that cells need)",
			ids(of[isolated]), vpc)
	}
	if !named && len(of[isolated]) > 0 {
		n.Notes = append(n.Notes, fmt.Sprintf("no cells in %s: no default route; to have cells there name them: --subnets", ids(of[isolated])))
	}
	return n, taken, nil
}

// fill gives the network those of the subnets that have room, or are among installed.
func (n *Network) fill(taken []types.Subnet, installed []string, vpc string) error {
	var full []string
	for _, s := range taken {
		id, free := aws.ToString(s.SubnetId), aws.ToInt32(s.AvailableIpAddressCount)
		if free < perCell {
			full = append(full, fmt.Sprintf("subnet %s in %s has %d free addresses, and a cell takes %d", id, aws.ToString(s.AvailabilityZone),
				free, perCell))
			if !slices.Contains(installed, id) {
				continue
			}
		}
		n.Subnets = append(n.Subnets, id)
	}
	if n.Notes = append(n.Notes, full...); len(n.Subnets) == 0 {
		return fmt.Errorf("no subnet has room for cells (%s): end what takes their addresses, or add a subnet to %s and name it: --subnets",
			strings.Join(full, "; "), vpc)
	}
	slices.Sort(n.Subnets)
	return nil
}

func ids(subnets []types.Subnet) string {
	var all []string
	for _, s := range subnets {
		all = append(all, aws.ToString(s.SubnetId))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// way is how a subnet reaches the internet.
type way int

const (
	isolated way = iota // it does not
	private             // by something that translates or forwards private addresses
	public              // by an internet gateway, which sends nothing for an instance without a public address
)

// wayBy is the way that routes give. What is not an internet gateway is taken to lead out, if it has the default route. A peering does
// not: it forwards to no gateway of the other VPC. Sources: EC2 API reference, "Route"; Amazon VPC Peering Guide, "VPC peering
// limitations".
func wayBy(routes []types.Route) way {
	found := isolated
	for _, r := range routes {
		gateway, _, _ := strings.Cut(aws.ToString(r.GatewayId), "-")
		switch {
		case gateway == "igw":
			return public
		case aws.ToString(r.DestinationCidrBlock) != "0.0.0.0/0", r.State == types.RouteStateBlackhole:
		case gateway == "vgw", gateway == "vpce", r.NatGatewayId != nil, r.TransitGatewayId != nil, r.NetworkInterfaceId != nil,
			r.InstanceId != nil, r.LocalGatewayId != nil, r.CarrierGatewayId != nil, r.CoreNetworkArn != nil:
			found = private
		}
	}
	return found
}

// ways says how each subnet of a VPC reaches the internet, by its own route table or the main one.
func (a *Account) ways(ctx context.Context, vpc string) (func(subnet string) way, error) {
	own, main := map[string]way{}, isolated
	pages := ec2.NewDescribeRouteTablesPaginator(a.ec2, &ec2.DescribeRouteTablesInput{Filters: []types.Filter{filter("vpc-id", vpc)}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("describe the route tables of %s: %w", vpc, explain(err, a.Region))
		}
		for _, table := range page.RouteTables {
			by := wayBy(table.Routes)
			for _, association := range table.Associations {
				if aws.ToBool(association.Main) {
					main = by
				}
				if association.SubnetId != nil {
					own[*association.SubnetId] = by
				}
			}
		}
	}
	return func(subnet string) way {
		if by, has := own[subnet]; has {
			return by
		}
		return main
	}, nil
}

// CheckGroups says which security groups the VPC lacks.
func (a *Account) CheckGroups(ctx context.Context, vpc string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	out, err := a.ec2.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: []types.Filter{
		filter("vpc-id", vpc), filter("group-id", ids...)}})
	if err != nil {
		return fmt.Errorf("describe the security groups %s: %w", strings.Join(ids, ", "), explain(err, a.Region))
	}
	for _, id := range ids {
		if !slices.ContainsFunc(out.SecurityGroups, func(g types.SecurityGroup) bool { return aws.ToString(g.GroupId) == id }) {
			return fmt.Errorf("there is no security group %s in %s, the VPC of the cluster: want the ID of one, sg-…", id, vpc)
		}
	}
	return nil
}
