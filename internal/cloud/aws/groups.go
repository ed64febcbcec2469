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

// permissionsOf are rules in EC2's words.
func permissionsOf(rules []rule) (all []types.IpPermission) {
	for _, r := range rules {
		p := types.IpPermission{IpProtocol: aws.String(r.protocol), FromPort: aws.Int32(r.from), ToPort: aws.Int32(r.to)}
		switch prefix, err := netip.ParsePrefix(r.source); {
		case strings.HasPrefix(r.source, "pl-"):
			p.PrefixListIds = []types.PrefixListId{{PrefixListId: aws.String(r.source)}}
		case err != nil:
			p.UserIdGroupPairs = []types.UserIdGroupPair{{GroupId: aws.String(r.source)}}
		case prefix.Addr().Is6():
			p.Ipv6Ranges = []types.Ipv6Range{{CidrIpv6: aws.String(r.source)}}
		default:
			p.IpRanges = []types.IpRange{{CidrIp: aws.String(r.source)}}
		}
		all = append(all, p)
	}
	return all
}

// rulesOf are those that a group has.
func rulesOf(all []types.IpPermission) (rules []rule) {
	for _, p := range all {
		add := func(source *string) {
			rules = append(rules, rule{aws.ToString(p.IpProtocol), aws.ToInt32(p.FromPort), aws.ToInt32(p.ToPort), aws.ToString(source)})
		}
		for _, r := range p.IpRanges {
			add(r.CidrIp)
		}
		for _, r := range p.Ipv6Ranges {
			add(r.CidrIpv6)
		}
		for _, g := range p.UserIdGroupPairs {
			add(g.GroupId)
		}
		for _, l := range p.PrefixListIds {
			add(l.PrefixListId)
		}
	}
	return rules
}

// without are those of a list that another one lacks.
func without(all, other []rule) []rule {
	return slices.DeleteFunc(slices.Clone(all), func(r rule) bool { return slices.Contains(other, r) })
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
	group, has, err := c.findGroup(ctx, n.vpc, owner)
	if err != nil || group == "" {
		return err
	}
	return c.keepRules(ctx, n.vpc, group, has, !c.unlocated || len(c.cfg.KipSources) > 0)
}

// nameOfGroup is that of the group of an owner's cells.
func nameOfGroup(owner string) string { return "kip-" + owner + "-cells" }

// findGroup finds the group of an owner's cells and its rules; "" where there is none.
func (c *Cloud) findGroup(ctx context.Context, vpc, owner string) (id string, has []rule, err error) {
	out, err := c.api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{
		Filters: []types.Filter{filter("vpc-id", vpc), filter("group-name", nameOfGroup(owner)), filter("tag:"+cloud.TagOwner, owner)},
	})
	if err != nil {
		return "", nil, classify(err, cloud.Scope{})
	}
	if len(out.SecurityGroups) == 0 {
		return "", nil, nil
	}
	return aws.ToString(out.SecurityGroups[0].GroupId), rulesOf(out.SecurityGroups[0].IpPermissions), nil
}

// makeGroup finds the group or makes it, and sees to its rules.
func (c *Cloud) makeGroup(ctx context.Context, vpc, owner string) (group cellsGroup, err error) {
	var has []rule
	if group.id, has, err = c.findGroup(ctx, vpc, owner); err != nil {
		return cellsGroup{}, err
	}
	if name := nameOfGroup(owner); group.id == "" {
		made, err := c.api.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
			GroupName:   aws.String(name),
			Description: aws.String("Cells of Kip: who may reach them"),
			VpcId:       aws.String(vpc),
			TagSpecifications: []types.TagSpecification{{
				ResourceType: types.ResourceTypeSecurityGroup,
				Tags:         tagsOf(map[string]string{cloud.TagOwner: owner, cloud.TagName: name}),
			}},
		})
		if err != nil {
			return cellsGroup{}, classify(err, cloud.Scope{})
		}
		group = cellsGroup{aws.ToString(made.GroupId), c.cfg.Clock.Now()}
	}
	return group, c.keepRules(ctx, vpc, group.id, has, true)
}

// keepRules gives a group the rules that it is to have. What it has goes once that is done, but
// for who may reach the agents: that goes only where it is surely known where Kip is.
func (c *Cloud) keepRules(ctx context.Context, vpc, group string, has []rule, surely bool) error {
	networks, err := c.networksOf(ctx, vpc)
	if err != nil {
		return err
	}
	wanted := c.rules(networks)
	more, surplus := without(wanted, has), without(has, wanted)
	if !surely {
		surplus = slices.DeleteFunc(surplus, func(r rule) bool { return r.from == agentPort })
	}
	err = c.authorise(ctx, group, more)
	if codeOf(err) == codeManyRules && len(surplus) > 0 { // old and new ones do not fit beside each other
		if err := c.revoke(ctx, group, surplus); err != nil {
			return err
		}
		surplus, err = nil, c.authorise(ctx, group, more)
	}
	if err != nil {
		return err
	}
	return c.revoke(ctx, group, surplus)
}

// codeManyRules is what EC2 says of more rules than a group takes.
const codeManyRules = "RulesPerSecurityGroupLimitExceeded"

func (c *Cloud) authorise(ctx context.Context, group string, rules []rule) error {
	if len(rules) == 0 {
		return nil
	}
	_, err := c.api.AuthorizeSecurityGroupIngress(ctx, &ec2.AuthorizeSecurityGroupIngressInput{
		GroupId:       aws.String(group),
		IpPermissions: permissionsOf(rules),
	})
	if err != nil {
		return classify(err, cloud.Scope{})
	}
	return nil
}

func (c *Cloud) revoke(ctx context.Context, group string, rules []rule) error {
	if len(rules) == 0 {
		return nil
	}
	_, err := c.api.RevokeSecurityGroupIngress(ctx, &ec2.RevokeSecurityGroupIngressInput{
		GroupId:       aws.String(group),
		IpPermissions: permissionsOf(rules),
	})
	if err != nil {
		return classify(err, cloud.Scope{})
	}
	return nil
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
