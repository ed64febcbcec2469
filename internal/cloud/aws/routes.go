package aws

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// Codes of EC2's that say that a route is there already, or is not there.
const (
	codeRouteExists = "RouteAlreadyExists"
	codeNoRoute     = "InvalidRoute.NotFound"
)

// routing routes networks of the VPC to instances.
type routing struct {
	*base
	networks *networks
}

// Route implements cloud.Router, in the tables of the cells' subnets: a subnet's own, or the main
// one of the VPC where it has none.
func (e *routing) Route(ctx context.Context, instance string, to []netip.Prefix) error {
	n, err := e.networks.where(ctx)
	if err != nil {
		return err
	}
	tables, err := e.routeTables(ctx, n.vpc)
	if err != nil {
		return err
	}
	// Without that EC2 drops what is not to, or from, the instance's own addresses.
	if _, err := e.api.ModifyInstanceAttribute(ctx, &ec2.ModifyInstanceAttributeInput{
		InstanceId:      aws.String(instance),
		SourceDestCheck: &types.AttributeBooleanValue{Value: aws.Bool(false)},
	}); err != nil {
		return fmt.Errorf("let %s forward: %w", instance, classify(err, cloud.Scope{}))
	}
	for _, table := range ofSubnets(tables, n.subnets) {
		for _, prefix := range to {
			if err := e.routeIn(ctx, table, instance, prefix); err != nil {
				return err
			}
		}
	}
	return nil
}

// routeIn makes one route in one table.
func (e *routing) routeIn(ctx context.Context, table types.RouteTable, instance string, to netip.Prefix) error {
	id := aws.ToString(table.RouteTableId)
	if n := slices.IndexFunc(table.Routes, leadsTo(to)); n >= 0 {
		if there := table.Routes[n]; aws.ToString(there.InstanceId) != instance {
			return &cloud.RouteTakenError{To: to, Table: id, Target: targetOf(there)}
		}
		return nil
	}
	_, err := e.api.CreateRoute(ctx, &ec2.CreateRouteInput{
		RouteTableId:         aws.String(id),
		DestinationCidrBlock: aws.String(to.String()),
		InstanceId:           aws.String(instance),
	})
	switch {
	case err == nil:
		return nil
	case codeOf(err) == codeRouteExists:
		return &cloud.RouteTakenError{To: to, Table: id, Target: "something since a moment ago"}
	}
	return fmt.Errorf("route %s to %s in %s: %w", to, instance, id, classify(err, cloud.Scope{}))
}

// Unroute implements cloud.Router. It looks at all tables of the VPC, since a subnet may have got
// another. Of an instance that has ended EC2 need not say more than that the route leads nowhere. With EndsOnly it looks at the tables
// of all VPCs, for routes to the instance alone.
func (e *routing) Unroute(ctx context.Context, instance string, to []netip.Prefix) error {
	vpc := ""
	if e.cfg.EndsOnly {
		to = nil
	} else {
		n, err := e.networks.where(ctx)
		if err != nil {
			return err
		}
		vpc = n.vpc
	}
	tables, err := e.routeTables(ctx, vpc)
	if err != nil {
		return err
	}
	for _, table := range tables {
		for _, r := range table.Routes {
			if r.DestinationCidrBlock == nil { // to IPv6 or a list of prefixes, so somebody else's
				continue
			}
			prefix, err := netip.ParsePrefix(*r.DestinationCidrBlock)
			named := err == nil && slices.Contains(to, prefix)
			if aws.ToString(r.InstanceId) != instance && (!named || !leadsNowhere(r)) {
				continue
			}
			if _, err := e.api.DeleteRoute(ctx, &ec2.DeleteRouteInput{
				RouteTableId:         table.RouteTableId,
				DestinationCidrBlock: r.DestinationCidrBlock,
			}); err != nil && codeOf(err) != codeNoRoute {
				return fmt.Errorf("take the route of %s to %s back in %s: %w", aws.ToString(r.DestinationCidrBlock), instance,
					aws.ToString(table.RouteTableId), classify(err, cloud.Scope{}))
			}
		}
	}
	return nil
}

// routeTables are all of a VPC, or of all if it is "".
func (b *base) routeTables(ctx context.Context, vpc string) (all []types.RouteTable, err error) {
	in := &ec2.DescribeRouteTablesInput{}
	if vpc != "" {
		in.Filters = []types.Filter{filter("vpc-id", vpc)}
	}
	pages := ec2.NewDescribeRouteTablesPaginator(b.api, in)
	err = eachPage(ctx, pages, func(page *ec2.DescribeRouteTablesOutput) { all = append(all, page.RouteTables...) })
	if err != nil {
		return nil, fmt.Errorf("read the route tables of %s: %w", cmp.Or(vpc, "all VPCs"), err)
	}
	return all, nil
}

// ofSubnets are the tables by which these subnets send.
func ofSubnets(tables []types.RouteTable, subnets map[string]subnet) (used []types.RouteTable) {
	associated := func(t types.RouteTable, with func(types.RouteTableAssociation) bool) bool {
		return slices.ContainsFunc(t.Associations, with)
	}
	own := map[string]bool{} // subnets with a table of their own
	for _, t := range tables {
		for _, a := range t.Associations {
			own[aws.ToString(a.SubnetId)] = true
		}
	}
	main := false
	for id := range subnets {
		main = main || !own[id]
	}
	for _, t := range tables {
		if associated(t, func(a types.RouteTableAssociation) bool {
			_, ours := subnets[aws.ToString(a.SubnetId)]
			return ours || main && aws.ToBool(a.Main)
		}) {
			used = append(used, t)
		}
	}
	return used
}

// leadsTo finds the route of a prefix.
func leadsTo(to netip.Prefix) func(types.Route) bool {
	return func(r types.Route) bool {
		prefix, err := netip.ParsePrefix(aws.ToString(r.DestinationCidrBlock))
		return err == nil && prefix == to
	}
}

// leadsNowhere says that the target of a route was an instance, of which EC2 knows no more.
func leadsNowhere(r types.Route) bool {
	return r.State == types.RouteStateBlackhole && r.InstanceId == nil && targetOf(r) == aws.ToString(r.NetworkInterfaceId)
}

// targetOf is where a route leads, by its ID.
func targetOf(r types.Route) string {
	for _, id := range []*string{r.InstanceId, r.GatewayId, r.NatGatewayId, r.TransitGatewayId, r.VpcPeeringConnectionId,
		r.EgressOnlyInternetGatewayId, r.LocalGatewayId, r.CarrierGatewayId, r.CoreNetworkArn, r.OdbNetworkArn} {
		if aws.ToString(id) != "" {
			return *id
		}
	}
	return aws.ToString(r.NetworkInterfaceId)
}
