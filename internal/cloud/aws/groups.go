package aws

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// agentPort is that of the agents, agentapi.Port, which only Kip dials.
const agentPort = 6421

// rule lets one source reach some ports of cells.
type rule struct {
	protocol string
	from, to int32
	source   string // a CIDR, or the ID of a security group
}

// maxRules are those that a security group takes of one direction (Amazon VPC User Guide,
// "Amazon VPC quotas"), without a raise.
const maxRules = 60

// checkRules refuses more rules than a group takes, with a VPC of one network.
func (c *Cloud) checkRules() error {
	if n := len(c.rules([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})); n > maxRules {
		return fmt.Errorf("cells.extraCIDRs: the %d values, and %d of cloud.aws.kipSources, make %d rules of the cells' security group, "+
			"and EC2 takes %d: want fewer, wider ones", len(c.cfg.ExtraCIDRs), len(c.cfg.KipSources), n, maxRules)
	}
	return nil
}

// rules are those of the cells' group: the agent's port from where Kip is, all others from
// the VPC and from cells.extraCIDRs.
func (c *Cloud) rules(vpc []netip.Prefix) (all []rule) {
	others := slices.Concat(vpc, c.cfg.ExtraCIDRs)
	kip := c.kipIs()
	switch {
	case len(kip) > 0:
	case c.dialPublic:
		for _, p := range c.cfg.ExtraCIDRs {
			kip = append(kip, p.Masked().String())
		}
	default:
		for _, p := range others {
			kip = append(kip, p.Masked().String())
		}
	}
	add := func(r rule) {
		if !slices.Contains(all, r) { // a network may be the VPC's, and in the file as well: EC2 takes none twice
			all = append(all, r)
		}
	}
	for _, source := range kip {
		add(rule{"tcp", agentPort, agentPort, source})
	}
	for _, p := range others {
		source, icmp := p.Masked().String(), "icmp"
		if p.Addr().Is6() {
			icmp = "icmpv6"
		}
		add(rule{"tcp", 0, agentPort - 1, source})
		add(rule{"tcp", agentPort + 1, 65535, source})
		add(rule{"udp", 0, 65535, source})
		add(rule{icmp, -1, -1, source})
	}
	return all
}

// kipIs is where Kip dials from, as the file says, or its instance; none where nobody does.
func (c *Cloud) kipIs() (sources []string) {
	for _, source := range c.cfg.KipSources {
		if p, err := netip.ParsePrefix(source); err == nil {
			source = p.Masked().String() // as EC2 keeps it
		}
		sources = append(sources, source)
	}
	if len(sources) > 0 {
		return sources
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.kipGroups)
}

// groupTries bounds how often a group is looked for that is there after all.
const groupTries = 3

// ownGroup is the group of an owner's cells, which is made, and given its rules, before the
// first launch. It is looked at again with each catalogue, and where a launch is stale.
func (c *Cloud) ownGroup(ctx context.Context, vpc, owner string) (string, error) {
	unlock, err := c.lockGroup(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	c.mu.Lock()
	known := c.own[owner]
	c.mu.Unlock()
	if known.id != "" {
		return known.id, nil
	}
	made, err := c.makeGroup(ctx, vpc, owner)
	// Another Kip, or a call whose answer was lost, did the same meanwhile.
	for try := 1; try < groupTries && strings.HasSuffix(codeOf(err), ".Duplicate"); try++ {
		made, err = c.makeGroup(ctx, vpc, owner)
	}
	const what = "make the security group of the cells"
	switch cloud.CauseOf(err) {
	case cloud.ErrThrottled, cloud.ErrUnauthorised:
		return "", fmt.Errorf("%s: %w", what, err)
	}
	if err != nil {
		// EC2's no is to the group, and says nothing of what was to be launched: it is no cause
		// of a refusal of that.
		return "", fmt.Errorf("%s: %s", what, err.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own[owner] = made
	return made.id, nil
}

// lockGroup waits until nobody else makes a cells' group, or changes its rules.
func (c *Cloud) lockGroup(ctx context.Context) (unlock func(), err error) {
	select {
	case c.making <- struct{}{}:
		return func() { <-c.making }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Admit implements cloud.Admitter. Kip may have come to another instance, or its instance to
// other security groups; or the VPC has other networks.
func (c *Cloud) Admit(ctx context.Context, owner string) error {
	if err := c.admit(ctx, owner); err != nil {
		return fmt.Errorf("let Kip in by the security group of the cells: %w", err)
	}
	return nil
}

func (c *Cloud) admit(ctx context.Context, owner string) error {
	if c.unlocated {
		if _, err := whereIsKip(ctx, c.cfg.metadata); err == nil {
			return errors.New("the metadata service was silent when Kip began, so that Kip takes itself to be outside of EC2, and now answers: restart Kip")
		}
	}
	if c.onInstance && len(c.cfg.KipSources) == 0 {
		here, err := whereIsKip(ctx, c.cfg.metadata)
		if err != nil {
			return err
		}
		if len(here.groups) == 0 { // which would let in the whole VPC
			return errors.New("the metadata service tells no security group of the instance that Kip runs on")
		}
		c.mu.Lock()
		c.kipGroups = here.groups
		c.mu.Unlock()
	}
	n, err := c.where(ctx)
	if err != nil {
		return err
	}
	unlock, err := c.lockGroup(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	group, err := c.findGroup(ctx, n.vpc, owner)
	if err != nil || group.id == "" {
		return err
	}
	c.keepTags(ctx, group, owner)
	return c.keepRules(ctx, n.vpc, group, !c.unlocated || len(c.cfg.KipSources) > 0)
}

// nameOfGroup is that of the group of an owner's cells.
func nameOfGroup(owner string) string { return "kip-" + owner + "-cells" }

// foundGroup is a group of cells as EC2 shows it; its ID is "" if there is none.
type foundGroup struct {
	id    string
	rules []describedRule
	tags  map[string]string
}

// findGroup finds the group of an owner's cells.
func (c *Cloud) findGroup(ctx context.Context, vpc, owner string) (foundGroup, error) {
	out, err := c.api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{
		Filters: []types.Filter{filter("vpc-id", vpc), filter("group-name", nameOfGroup(owner)), filter("tag:"+cloud.TagOwner, owner)},
	})
	if err != nil {
		return foundGroup{}, classify(err, cloud.Scope{})
	}
	if len(out.SecurityGroups) == 0 {
		return foundGroup{}, nil
	}
	g := out.SecurityGroups[0]
	return foundGroup{aws.ToString(g.GroupId), rulesOf(g.IpPermissions), mapOf(g.Tags)}, nil
}

// makeGroup finds the group or makes it, and sees to its rules.
func (c *Cloud) makeGroup(ctx context.Context, vpc, owner string) (group cellsGroup, err error) {
	found, err := c.findGroup(ctx, vpc, owner)
	if err != nil {
		return cellsGroup{}, err
	}
	group.id = found.id
	if name := nameOfGroup(owner); found.id == "" {
		made, err := c.api.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
			GroupName:   aws.String(name),
			Description: aws.String("Cells of Kip: who may reach them"),
			VpcId:       aws.String(vpc),
			TagSpecifications: []types.TagSpecification{{
				ResourceType: types.ResourceTypeSecurityGroup,
				Tags:         tagsOf(c.groupTags(owner)),
			}},
		})
		if err != nil {
			return cellsGroup{}, classify(err, cloud.Scope{})
		}
		group = cellsGroup{aws.ToString(made.GroupId), c.cfg.Clock.Now()}
		found.id, found.tags = group.id, c.groupTags(owner)
	}
	c.keepTags(ctx, found, owner)
	return group, c.keepRules(ctx, vpc, found, true)
}

// networksOf are the networks of a VPC: all of them, not only the first.
func (c *Cloud) networksOf(ctx context.Context, vpc string) (all []netip.Prefix, err error) {
	out, err := c.api.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{Filters: []types.Filter{filter("vpc-id", vpc)}})
	if err != nil {
		return nil, classify(err, cloud.Scope{})
	}
	for _, v := range out.Vpcs {
		for _, a := range v.CidrBlockAssociationSet {
			if a.CidrBlockState == nil || a.CidrBlockState.State != types.VpcCidrBlockStateCodeAssociated {
				continue
			}
			p, err := netip.ParsePrefix(aws.ToString(a.CidrBlock))
			if err != nil {
				return nil, fmt.Errorf("the network of %s: %w", vpc, err)
			}
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("EC2 shows no network of %s", vpc)
	}
	return all, nil
}

// cellsGroup is the group of an owner's cells.
type cellsGroup struct {
	id string
	// made is when this process made it; zero when it was there.
	made time.Time
}

// newGroup is for how long after its making EC2 may not know a group in other calls.
const newGroup = time.Minute

// noGroup is what it means that EC2 did not find a group of a launch. One that was just made, or
// that EC2 shows, is not known to all of EC2 yet: the same call succeeds once it is. One that is
// gone leads to a launch with others.
func (c *Cloud) noGroup(ctx context.Context, groups []string, said error) error {
	later := cloud.No(cloud.ErrNotYet, cloud.Scope{}, fmt.Errorf("the security groups of the launch are not all there, or not yet: %w", said))
	if c.justMade(groups) {
		return later
	}
	out, err := c.api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: []types.Filter{filter("group-id", groups...)}})
	if err != nil || len(out.SecurityGroups) == len(groups) {
		return later
	}
	return c.stale(said)
}

// justMade says that this process made one of the groups a moment ago.
func (c *Cloud) justMade(groups []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, own := range c.own {
		if slices.Contains(groups, own.id) && c.cfg.Clock.Since(own.made) < newGroup {
			return true
		}
	}
	return false
}
