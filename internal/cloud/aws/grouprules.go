package aws

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// groupRules gives the group of the cells its rules.
type groupRules struct {
	*base

	mu        sync.Mutex
	kipGroups []string // of the instance that Kip runs on, where that is in the VPC
}

// moved notes the groups of the instance that Kip runs on.
func (e *groupRules) moved(groups []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kipGroups = groups
}

// keepRules gives a group the rules that it is to have. Kip's own that it is not to have go once that is done, but
// for who may reach the agents: that goes only where it is surely known where Kip is.
func (e *groupRules) keepRules(ctx context.Context, vpc string, group foundGroup, surely bool) error {
	networks, err := e.networksOf(ctx, vpc)
	if err != nil {
		return err
	}
	changes := changesOf(e.rules(networks), group.rules)
	surplus := changes.remove
	if !surely {
		surplus = slices.DeleteFunc(surplus, func(r rule) bool { return r.from == agentPort })
	}
	err = e.authorise(ctx, group.id, changes.add)
	if codeOf(err) == codeManyRules && len(surplus) > 0 { // old and new ones do not fit beside each other
		if err := e.revoke(ctx, group.id, surplus); err != nil {
			return err
		}
		surplus, err = nil, e.authorise(ctx, group.id, changes.add)
	}
	if codeOf(err) == codeManyRules {
		return fmt.Errorf("add %d rules to security group %s, which has %d: remove rules that others made, or raise the quota: %w",
			len(changes.add), group.id, len(group.rules), err)
	}
	if err != nil {
		return err
	}
	e.tellOthers(group.id, changes)
	return e.revoke(ctx, group.id, surplus)
}

// tellOthers reports the rules of a group that others made and Kip does not want. Kip leaves them alone.
func (e *groupRules) tellOthers(group string, changes ruleChanges) {
	if left := rulesText(changes.leave); e.isNews("rules left alone in "+group, left) && left != "" {
		e.cfg.Log.Warn("the security group of the cells has rules without a description, which Kip did not make: "+
			"Kip leaves them alone; remove those that you do not need", "group", group, "rules", left)
	}
	e.tellOpen(group, changes)
}

// tellOpen reports the rules of a group by which more than Kip reaches the agents. Kip leaves them alone.
func (e *groupRules) tellOpen(group string, changes ruleChanges) {
	text := rulesText(changes.open)
	if !e.isNews("rules to agents in "+group, text) || text == "" {
		return
	}
	e.cfg.Log.Warn("rules that Kip does not want in the security group of the cells let more than Kip reach the port of agents, 6421: "+
		"Kip leaves them alone; narrow or remove them", "group", group, "rules", text)
	if e.cfg.AgentsOpen != nil {
		e.cfg.AgentsOpen(group, agentPort, text[:min(len(text), maxMessage)])
	}
}

// codeManyRules is what EC2 says of more rules than a group takes.
const codeManyRules = "RulesPerSecurityGroupLimitExceeded"

func (e *groupRules) authorise(ctx context.Context, group string, rules []rule) error {
	if len(rules) == 0 {
		return nil
	}
	_, err := e.api.AuthorizeSecurityGroupIngress(ctx, &ec2.AuthorizeSecurityGroupIngressInput{
		GroupId:       aws.String(group),
		IpPermissions: permissionsOf(rules),
	})
	if err != nil {
		return classify(err, cloud.Scope{})
	}
	return nil
}

func (e *groupRules) revoke(ctx context.Context, group string, rules []rule) error {
	if len(rules) == 0 {
		return nil
	}
	_, err := e.api.RevokeSecurityGroupIngress(ctx, &ec2.RevokeSecurityGroupIngressInput{
		GroupId:       aws.String(group),
		IpPermissions: permissionsOf(rules),
	})
	if err != nil {
		return classify(err, cloud.Scope{})
	}
	return nil
}

// maxRules are those that a security group takes of one direction (Amazon VPC User Guide,
// "Amazon VPC quotas"), without a raise.
const maxRules = 60

// checkRules refuses more rules than a group takes, with a VPC of one network.
func (e *groupRules) checkRules() error {
	if n := len(e.rules([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})); n > maxRules {
		return fmt.Errorf("cells.extraCIDRs: the %d values, and %d of cloud.aws.kipSources, make %d rules of the cells' security group, "+
			"and EC2 takes %d: want fewer, wider ones", len(e.cfg.ExtraCIDRs), len(e.cfg.KipSources), n, maxRules)
	}
	return nil
}

// rules are those of the cells' group: the agent's port from where Kip is, all others from
// the VPC and from cells.extraCIDRs.
func (e *groupRules) rules(vpc []netip.Prefix) (all []rule) {
	others := slices.Concat(vpc, e.cfg.ExtraCIDRs)
	kip := e.kipIs()
	switch {
	case len(kip) > 0:
	case e.dialPublic:
		for _, p := range e.cfg.ExtraCIDRs {
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
func (e *groupRules) kipIs() (sources []string) {
	for _, source := range e.cfg.KipSources {
		if p, err := netip.ParsePrefix(source); err == nil {
			source = p.Masked().String() // as EC2 keeps it
		}
		sources = append(sources, source)
	}
	if len(sources) > 0 {
		return sources
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.kipGroups)
}

// networksOf are the networks of a VPC: all of them, not only the first.
func (e *groupRules) networksOf(ctx context.Context, vpc string) (all []netip.Prefix, err error) {
	out, err := e.api.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{Filters: []types.Filter{filter("vpc-id", vpc)}})
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
