package aws

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
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

// where returns the network, which is read once until the next catalogue.
func (c *Cloud) where(ctx context.Context) (*network, error) {
	c.mu.Lock()
	known, first := c.network, !c.located
	c.mu.Unlock()
	if known != nil {
		return known, nil
	}
	n, err := c.readNetwork(ctx, first)
	if err != nil {
		return nil, fmt.Errorf("find the subnets of the cells: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.network, c.located = n, true
	c.shown[subnetsShown] = time.Time{}
	for id := range n.subnets {
		c.shown[id] = time.Time{}
	}
	return n, nil
}

// readNetwork asks for all subnets that are configured. One that has gone since the first time
// is to blame for no launch in another.
func (c *Cloud) readNetwork(ctx context.Context, first bool) (*network, error) {
	all, err := c.readSubnets(ctx)
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
		return nil, c.notShown(subnetsShown, c.noSubnet())
	case len(n.subnets) < len(c.cfg.Subnets) && !first:
		c.cfg.Log.Error("EC2 does not show all subnets that are configured: no cell is launched in the others",
			"configured", c.cfg.Subnets, "shown", names)
	case len(n.subnets) < len(c.cfg.Subnets):
		return nil, refused("of the subnets %s EC2 shows only %s", strings.Join(c.cfg.Subnets, ", "), strings.Join(names, ", "))
	case c.cfg.VPC != "" && c.cfg.VPC != defaultVPC && n.vpc != c.cfg.VPC:
		return nil, refused("the subnets %s are in %s: want subnets of cloud.aws.vpcID, which is %s", strings.Join(names, ", "), n.vpc, c.cfg.VPC)
	}
	c.mu.Lock()
	for _, s := range n.subnets {
		c.zones[s.zone] = true
	}
	c.mu.Unlock()
	public, err := c.publicSubnets(ctx, n.vpc)
	if err != nil {
		return nil, err
	}
	for id, s := range n.subnets {
		s.public = public(id)
		n.subnets[id] = s
		c.warnOfNoAddress(id, s)
	}
	zones, err := c.api.DescribeAvailabilityZones(ctx, &ec2.DescribeAvailabilityZonesInput{})
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
func (c *Cloud) zonesOfCells(ctx context.Context) (map[string]bool, error) {
	read := func() map[string]bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return maps.Clone(c.zones)
	}
	if known := read(); len(known) > 0 {
		return known, nil
	}
	_, err := c.where(ctx)
	if known := read(); len(known) > 0 {
		return known, nil
	}
	return nil, err
}

// warnOfNoAddress tells once of a subnet whose cells reach nothing outside: its way out is an internet gateway, which sends
// nothing for an interface without a public address.
func (c *Cloud) warnOfNoAddress(id string, s subnet) {
	reaches := !s.public || s.maps || c.cfg.PublicAddress || c.dialPublic || c.cfg.PrivateOnly
	if c.isNews("public address in "+id, strconv.FormatBool(reaches)) && !reaches {
		c.cfg.Log.Warn("the subnet's route to the internet is an internet gateway, and cells there have no public address, so neither images nor "+
			"pods reach the internet: want cloud.aws.publicAddress: true, MapPublicIpOnLaunch on the subnet, or a route to a NAT gateway", "subnet", id)
	}
}

// goneAfter is how long EC2 must not show what it has shown before that counts as gone: one
// list may lack anything.
const goneAfter = 30 * time.Second

// subnetsShown stands for any subnet in what EC2 has shown.
const subnetsShown = "subnets"

// notShown is the error for what a list lacks. Where an earlier one had it the launch is to be
// resolved again, until that has gone on for a while; no offering is to blame before.
func (c *Cloud) notShown(what string, no error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, was := c.shown[what]
	now := c.cfg.Clock.Now()
	switch {
	case was && since.IsZero():
		c.shown[what] = now
	case !was || now.Sub(since) >= goneAfter:
		return no
	}
	c.network = nil // it is read again
	return fmt.Errorf("EC2 does not show what it has shown before, and is asked again: %s", no.Error())
}

// refused is a no of which nothing came: what was found is not what was configured.
func refused(format string, args ...any) error {
	return cloud.No(cloud.ErrRefused, cloud.Scope{}, fmt.Errorf(format, args...))
}

// noSubnet is the error where EC2 shows no subnet that is configured.
func (c *Cloud) noSubnet() error {
	if len(c.cfg.Subnets) > 0 {
		return refused("cloud.aws.subnetID is %q: want subnets that %s has, or none for those of cloud.aws.vpcID", strings.Join(c.cfg.Subnets, ","),
			c.cfg.Region)
	}
	if len(c.cfg.SubnetTags) == 0 {
		return refused("there is no subnet of %s: want cloud.aws.subnetID, or a cloud.aws.vpcID that has some",
			cmp.Or(map[string]string{defaultVPC: "a default VPC"}[c.cfg.VPC], c.cfg.VPC))
	}
	of := "the region"
	if c.cfg.VPC != "" {
		of = "VPC " + c.cfg.VPC
	}
	return refused("no subnet of %s has the tags %v: want cloud.aws.subnetTags that some have, or cloud.aws.subnetID", of, c.cfg.SubnetTags)
}

// readSubnets reads those that are configured: by ID, else all of the VPC, or those with the tags.
func (c *Cloud) readSubnets(ctx context.Context) ([]types.Subnet, error) {
	in := &ec2.DescribeSubnetsInput{Filters: []types.Filter{filter("state", "available")}}
	switch {
	case len(c.cfg.Subnets) > 0:
		in.Filters = append(in.Filters, filter("subnet-id", c.cfg.Subnets...))
	case c.cfg.VPC == "": // they are found by their tags
	case c.cfg.VPC == defaultVPC:
		in.Filters = append(in.Filters, filter("default-for-az", "true"))
	default:
		in.Filters = append(in.Filters, filter("vpc-id", c.cfg.VPC))
	}
	for _, key := range slices.Sorted(maps.Keys(c.cfg.SubnetTags)) {
		in.Filters = append(in.Filters, filter("tag:"+key, c.cfg.SubnetTags[key]))
	}
	var all []types.Subnet
	err := eachPage(ctx, ec2.NewDescribeSubnetsPaginator(c.api, in), func(page *ec2.DescribeSubnetsOutput) {
		all = append(all, page.Subnets...)
	})
	return all, err
}

// publicSubnets says which subnets of a VPC have a route to an internet gateway, by their
// own table or, without one, by the main one.
func (c *Cloud) publicSubnets(ctx context.Context, vpc string) (func(subnet string) bool, error) {
	tables, err := c.routeTables(ctx, vpc)
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

// image is what machines boot.
type image struct {
	id         string
	rootDevice string
	gib        int32  // the least size of its disk
	bios       bool   // it boots by a BIOS alone
	uefi       bool   // it boots by UEFI alone
	paid       bool   // EC2 calls it not eligible for AWS' Free plan
	created    string // when, RFC 3339
	deprecated string // since when its owner says that nobody should use it, RFC 3339; "" for not yet
	making
}

// image finds what a launch boots: by its ID, or the newest that is called so, of an owner
// or of the account itself, for its type's architecture and its devices. It is remembered until the next catalogue.
func (c *Cloud) image(ctx context.Context, of cloud.LaunchSpec) (image, error) {
	spec, arch := of.Image, of.Arch
	in, err := findImages(spec, arch)
	if err != nil {
		return image{}, cloud.No(cloud.ErrRefused, cloud.Scope{}, fmt.Errorf("cells.bootImageSpec: %w", err))
	}
	devices := c.wantsDriver(of)
	key := fmt.Sprint(spec, " ", arch, " ", devices) // in the order of its keys
	c.mu.Lock()
	known, ok := c.images[key]
	c.mu.Unlock()
	if ok {
		return known, nil
	}
	out, err := c.api.DescribeImages(ctx, in)
	if err != nil {
		return image{}, fmt.Errorf("find the image %v: %w", spec, classify(err, cloud.Scope{}))
	}
	newest := newestOf(out.Images, devices, c.cfg.Clock.Now())
	unfit := func(format string, args ...any) error {
		return cloud.No(cloud.ErrUnfit, cloud.Scope{InstanceType: of.InstanceType}, fmt.Errorf(format, args...))
	}
	has := architectures[types.ArchitectureType(newest.Architecture)]
	switch {
	case newest.ImageId == nil && arch == "":
		return image{}, fmt.Errorf("find the image %v: %w", spec, c.notShown(key, refused("EC2 shows none")))
	case newest.ImageId == nil:
		return image{}, fmt.Errorf("find the image %v: %w", spec, c.notShown(key, unfit("EC2 shows none for %s:"+
			" want one of this account, or one that is shared with it", arch)))
	case arch != "" && has != arch:
		return image{}, unfit("cells.bootImageSpec: image %s is for %s, and %s is wanted: want a name, which images of each architecture have",
			*newest.ImageId, newest.Architecture, arch)
	}
	found := image{
		id:         *newest.ImageId,
		rootDevice: aws.ToString(newest.RootDeviceName),
		bios:       newest.BootMode == types.BootModeValuesLegacyBios, // without a mode, too, on Intel and AMD, where its type can
		uefi:       newest.BootMode == types.BootModeValuesUefi,
		paid:       newest.FreeTierEligible != nil && !*newest.FreeTierEligible,
		created:    aws.ToString(newest.CreationDate),
		making:     madeAs(newest),
	}
	if deprecated(newest, c.cfg.Clock.Now()) {
		found.deprecated = aws.ToString(newest.DeprecationTime)
		c.cfg.Log.Warn("the image of cells is deprecated: its owner may remove it at any time; name another image in cells.bootImageSpec",
			"image", found.id, "since", aws.ToString(newest.DeprecationTime))
	}
	for _, d := range newest.BlockDeviceMappings {
		switch name := aws.ToString(d.DeviceName); {
		case d.Ebs == nil:
		case name == found.rootDevice:
			found.gib = aws.ToInt32(d.Ebs.VolumeSize)
		case !aws.ToBool(d.Ebs.DeleteOnTermination):
			// Each cell would leave one, which has no tag by which a sweep finds it.
			return image{}, fmt.Errorf("find the image %v: %w", spec, refused("the volume %s of %s stays when an instance ends: "+
				"want an image without it, or one made with its DeleteOnTermination", name, found.id))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images[key], c.shown[key] = found, time.Time{}
	return found, nil
}

// groupIDs finds security groups of the VPC, by name or, where one begins as an ID, by that.
func (c *Cloud) groupIDs(ctx context.Context, vpc string, named []string) ([]string, error) {
	c.mu.Lock()
	known := maps.Clone(c.groups)
	c.mu.Unlock()
	byID := func(g string) bool { return strings.HasPrefix(g, "sg-") }
	for by, of := range map[string]func(string) bool{"group-id": byID, "group-name": func(g string) bool { return !byID(g) }} {
		var unknown []string
		for _, g := range named {
			if of(g) && known[g] == "" {
				unknown = append(unknown, g)
			}
		}
		if len(unknown) == 0 {
			continue
		}
		out, err := c.api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{
			Filters: []types.Filter{filter("vpc-id", vpc), filter(by, unknown...)},
		})
		if err != nil {
			return nil, fmt.Errorf("find the security groups %s: %w", strings.Join(unknown, ", "), classify(err, cloud.Scope{}))
		}
		for _, g := range out.SecurityGroups {
			name, id := aws.ToString(g.GroupName), aws.ToString(g.GroupId)
			if by == "group-id" {
				name = id
			}
			known[name] = id
		}
	}
	var ids []string
	for _, g := range named {
		id := known[g]
		if id == "" {
			return nil, c.notShown("group "+g, refused("there is no security group %q in %s", g, vpc))
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.groups, known)
	for _, g := range named {
		c.shown["group "+g] = time.Time{}
	}
	return ids, nil
}
