package aws

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// network is where instances are launched. It is not modified once it was read.
type network struct {
	vpc     string
	subnets map[string]subnet
}

type subnet struct {
	zone string
	// public says that it has a route to an internet gateway.
	public bool
	site   site
	// maps says that it gives public addresses by itself.
	maps bool
}

// networks knows where instances are launched.
type networks struct {
	*base

	mu      sync.Mutex
	network *network
	located bool                 // it was read before
	zones   map[string]bool      // of all subnets of the cells that were read since Kip began
	shown   map[string]time.Time // what EC2 has shown, and since when it does not; zero while it does
}

// where returns the network, which is read once until the next catalogue.
func (e *networks) where(ctx context.Context) (*network, error) {
	e.mu.Lock()
	known, first := e.network, !e.located
	e.mu.Unlock()
	if known != nil {
		return known, nil
	}
	n, err := e.readNetwork(ctx, first)
	if err != nil {
		return nil, fmt.Errorf("find the subnets of the cells: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.network, e.located = n, true
	e.shown[subnetsShown] = time.Time{}
	for id := range n.subnets {
		e.shown[id] = time.Time{}
	}
	return n, nil
}

// readNetwork asks for all subnets that are configured. One that has gone since the first time
// is to blame for no launch in another.
func (e *networks) readNetwork(ctx context.Context, first bool) (*network, error) {
	all, err := e.readSubnets(ctx)
	if err != nil {
		return nil, err
	}
	n := &network{subnets: map[string]subnet{}}
	var names []string
	for _, s := range all {
		id, vpc := aws.ToString(s.SubnetId), aws.ToString(s.VpcId)
		if n.vpc != "" && vpc != n.vpc {
			return nil, refused("subnet %s is in %s, another one in %s: want subnets of one VPC", id, vpc, n.vpc)
		}
		n.vpc = vpc
		n.subnets[id] = subnet{zone: aws.ToString(s.AvailabilityZone), maps: aws.ToBool(s.MapPublicIpOnLaunch)}
		names = append(names, id)
	}
	switch {
	case len(n.subnets) == 0:
		return nil, e.notShown(subnetsShown, e.noSubnet())
	case len(n.subnets) < len(e.cfg.Subnets) && !first:
		e.cfg.Log.Error("EC2 does not show all subnets that are configured: no cell is launched in the others",
			"configured", e.cfg.Subnets, "shown", names)
	case len(n.subnets) < len(e.cfg.Subnets):
		return nil, refused("of the subnets %s EC2 shows only %s", strings.Join(e.cfg.Subnets, ", "), strings.Join(names, ", "))
	case e.cfg.VPC != "" && e.cfg.VPC != defaultVPC && n.vpc != e.cfg.VPC:
		return nil, refused("the subnets %s are in %s: want subnets of cloud.aws.vpcID, which is %s", strings.Join(names, ", "), n.vpc, e.cfg.VPC)
	}
	e.mu.Lock()
	for _, s := range n.subnets {
		e.zones[s.zone] = true
	}
	e.mu.Unlock()
	public, err := e.publicSubnets(ctx, n.vpc)
	if err != nil {
		return nil, err
	}
	for id, s := range n.subnets {
		s.public = public(id)
		n.subnets[id] = s
		e.warnOfNoAddress(id, s)
	}
	zones, err := e.api.DescribeAvailabilityZones(ctx, &ec2.DescribeAvailabilityZonesInput{})
	if err != nil {
		return nil, classify(err, cloud.Scope{})
	}
	for _, s := range all {
		id := aws.ToString(s.SubnetId)
		in := n.subnets[id]
		in.site = siteOf(s, zones.AvailabilityZones)
		n.subnets[id] = in
	}
	return n, nil
}

// zonesOfCells returns the zones where Kip can launch, or could since it began. It makes calls only if it has never read the subnets.
func (e *networks) zonesOfCells(ctx context.Context) (map[string]bool, error) {
	read := func() map[string]bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return maps.Clone(e.zones)
	}
	if known := read(); len(known) > 0 {
		return known, nil
	}
	_, err := e.where(ctx)
	if known := read(); len(known) > 0 {
		return known, nil
	}
	return nil, err
}

// warnOfNoAddress tells once of a subnet whose cells reach nothing outside: its way out is an internet gateway, which sends
// nothing for an interface without a public address.
func (e *networks) warnOfNoAddress(id string, s subnet) {
	reaches := !s.public || s.maps || e.cfg.PublicAddress || e.dialPublic || e.cfg.PrivateOnly
	if e.isNews("public address in "+id, strconv.FormatBool(reaches)) && !reaches {
		e.cfg.Log.Warn("the subnet's route to the internet is an internet gateway, and cells there have no public address, so neither images nor "+
			"pods reach the internet: want cloud.aws.publicAddress: true, MapPublicIpOnLaunch on the subnet, or a route to a NAT gateway", "subnet", id)
	}
}

// goneAfter is how long EC2 must not show what it has shown before that counts as gone: one
// list may lack anything.
const goneAfter = 30 * time.Second

// subnetsShown stands for any subnet in what EC2 has shown.
const subnetsShown = "subnets"

// forget has the network read again.
func (e *networks) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.network = nil
}

// saw notes that EC2 shows something.
func (e *networks) saw(what ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range what {
		e.shown[w] = time.Time{}
	}
}

// notShown is the error for what a list lacks. Where an earlier one had it the launch is to be
// resolved again, until that has gone on for a while; no offering is to blame before.
func (e *networks) notShown(what string, no error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	since, was := e.shown[what]
	now := e.cfg.Clock.Now()
	switch {
	case was && since.IsZero():
		e.shown[what] = now
	case !was || now.Sub(since) >= goneAfter:
		return no
	}
	e.network = nil // it is read again
	return fmt.Errorf("EC2 does not show what it has shown before, and is asked again: %s", no.Error())
}

// refused is a no of which nothing came: what was found is not what was configured.
func refused(format string, args ...any) error {
	return cloud.No(cloud.ErrRefused, cloud.Scope{}, fmt.Errorf(format, args...))
}

// noSubnet is the error where EC2 shows no subnet that is configured.
func (e *networks) noSubnet() error {
	if len(e.cfg.Subnets) > 0 {
		return refused("cloud.aws.subnetID is %q: want subnets that %s has, or none for those of cloud.aws.vpcID", strings.Join(e.cfg.Subnets, ","),
			e.cfg.Region)
	}
	if len(e.cfg.SubnetTags) == 0 {
		return refused("there is no subnet of %s: want cloud.aws.subnetID, or a cloud.aws.vpcID that has some",
			cmp.Or(map[string]string{defaultVPC: "a default VPC"}[e.cfg.VPC], e.cfg.VPC))
	}
	of := "the region"
	if e.cfg.VPC != "" {
		of = "VPC " + e.cfg.VPC
	}
	return refused("no subnet of %s has the tags %v: want cloud.aws.subnetTags that some have, or cloud.aws.subnetID", of, e.cfg.SubnetTags)
}

// readSubnets reads those that are configured: by ID, else all of the VPC, or those with the tags.
func (e *networks) readSubnets(ctx context.Context) ([]types.Subnet, error) {
	in := &ec2.DescribeSubnetsInput{Filters: []types.Filter{filter("state", "available")}}
	switch {
	case len(e.cfg.Subnets) > 0:
		in.Filters = append(in.Filters, filter("subnet-id", e.cfg.Subnets...))
	case e.cfg.VPC == "": // they are found by their tags
	case e.cfg.VPC == defaultVPC:
		in.Filters = append(in.Filters, filter("default-for-az", "true"))
	default:
		in.Filters = append(in.Filters, filter("vpc-id", e.cfg.VPC))
	}
	for _, key := range slices.Sorted(maps.Keys(e.cfg.SubnetTags)) {
		in.Filters = append(in.Filters, filter("tag:"+key, e.cfg.SubnetTags[key]))
	}
	var all []types.Subnet
	err := eachPage(ctx, ec2.NewDescribeSubnetsPaginator(e.api, in), func(page *ec2.DescribeSubnetsOutput) {
		all = append(all, page.Subnets...)
	})
	return all, err
}

// publicSubnets says which subnets of a VPC have a route to an internet gateway, by their
// own table or, without one, by the main one.
func (e *networks) publicSubnets(ctx context.Context, vpc string) (func(subnet string) bool, error) {
	tables, err := e.routeTables(ctx, vpc)
	if err != nil {
		return nil, err
	}
	own, main := map[string]bool{}, false
	for _, table := range tables {
		public := slices.ContainsFunc(table.Routes, func(r types.Route) bool { return strings.HasPrefix(aws.ToString(r.GatewayId), "igw-") })
		for _, a := range table.Associations {
			main = main || public && aws.ToBool(a.Main)
			if a.SubnetId != nil {
				own[*a.SubnetId] = public
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
