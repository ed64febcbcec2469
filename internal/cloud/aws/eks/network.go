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

// Network chooses the subnets of cells: those that are named, else the cluster's. Of the cluster's it takes those without a route to an
// internet gateway, if there are any: their cells need no public address, and reach the internet as the cluster's nodes there do.
func (a *Account) Network(ctx context.Context, c Cluster, named []string) (Network, error) {
	wanted := c.Subnets
	if len(named) > 0 {
		wanted = named
	}
	out, err := a.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{Filters: []types.Filter{filter("subnet-id", wanted...)}})
	if err != nil {
		return Network{}, fmt.Errorf("describe the subnets %s: %w", strings.Join(wanted, ", "), explain(err, a.Region))
	}
	public, err := a.public(ctx, c.VPC)
	if err != nil {
		return Network{}, err
	}
	var n Network
	var private, others []string
	seen := map[string]bool{}
	for _, s := range out.Subnets {
		id, free := aws.ToString(s.SubnetId), aws.ToInt32(s.AvailableIpAddressCount)
		seen[id] = true
		switch {
		case aws.ToString(s.VpcId) != c.VPC:
			return Network{}, fmt.Errorf("subnet %s is in %s, and the cluster in %s: want subnets of the cluster's VPC", id,
				aws.ToString(s.VpcId), c.VPC)
		case free < perCell:
			n.Notes = append(n.Notes, fmt.Sprintf("subnet %s in %s has %d free addresses, and a cell takes %d", id, aws.ToString(s.AvailabilityZone),
				free, perCell))
		case public(id):
			others = append(others, id)
		default:
			private = append(private, id)
		}
	}
	for _, id := range wanted {
		if !seen[id] {
			return Network{}, fmt.Errorf("EC2 shows no subnet %s in %s: want subnets of %s", id, a.Region, c.VPC)
		}
	}
	if n.Subnets = private; len(private) == 0 {
		n.Subnets, n.Public = others, true
	}
	if len(named) > 0 {
		n.Subnets, n.Public = slices.Concat(private, others), len(others) > 0
	}
	if len(n.Subnets) == 0 {
		return n, fmt.Errorf("no subnet has room for cells (%s): end what takes their addresses, or add a subnet to %s and name it: --subnets",
			strings.Join(n.Notes, "; "), c.VPC)
	}
	slices.Sort(n.Subnets)
	return n, nil
}

// public says which subnets of a VPC have a route to an internet gateway, by their own route table or the main one.
func (a *Account) public(ctx context.Context, vpc string) (func(subnet string) bool, error) {
	own, main := map[string]bool{}, false
	pages := ec2.NewDescribeRouteTablesPaginator(a.ec2, &ec2.DescribeRouteTablesInput{Filters: []types.Filter{filter("vpc-id", vpc)}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("describe the route tables of %s: %w", vpc, explain(err, a.Region))
		}
		for _, table := range page.RouteTables {
			public := slices.ContainsFunc(table.Routes, func(r types.Route) bool { return strings.HasPrefix(aws.ToString(r.GatewayId), "igw-") })
			for _, association := range table.Associations {
				main = main || public && aws.ToBool(association.Main)
				if association.SubnetId != nil {
					own[*association.SubnetId] = public
				}
			}
		}
	}
	return func(subnet string) bool {
		if public, has := own[subnet]; has {
			return public
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
