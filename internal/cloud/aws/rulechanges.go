package aws

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// ownDescription is the description of the rules that Kip makes. Kip removes these rules and no others: the AWS Load
// Balancer Controller writes rules into the same group (with elbv2.k8s.aws/targetGroupBinding=shared), and so do people.
const ownDescription = "kip.elotl.co/cells"

// describedRule is a rule that a group has.
type describedRule struct {
	rule
	description string
}

func (r rule) String() string {
	return fmt.Sprintf("%s %d-%d from %s", r.protocol, r.from, r.to, r.source)
}

// rulesText returns rules as text, in one order.
func rulesText(rules []rule) string {
	var all []string
	for _, r := range rules {
		all = append(all, r.String())
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// permissionsOf are rules in EC2's words.
func permissionsOf(rules []rule) (all []types.IpPermission) {
	about := aws.String(ownDescription)
	for _, r := range rules {
		p := types.IpPermission{IpProtocol: aws.String(r.protocol), FromPort: aws.Int32(r.from), ToPort: aws.Int32(r.to)}
		switch prefix, err := netip.ParsePrefix(r.source); {
		case strings.HasPrefix(r.source, "pl-"):
			p.PrefixListIds = []types.PrefixListId{{PrefixListId: aws.String(r.source), Description: about}}
		case err != nil:
			p.UserIdGroupPairs = []types.UserIdGroupPair{{GroupId: aws.String(r.source), Description: about}}
		case prefix.Addr().Is6():
			p.Ipv6Ranges = []types.Ipv6Range{{CidrIpv6: aws.String(r.source), Description: about}}
		default:
			p.IpRanges = []types.IpRange{{CidrIp: aws.String(r.source), Description: about}}
		}
		all = append(all, p)
	}
	return all
}

// rulesOf are those that a group has.
func rulesOf(all []types.IpPermission) (rules []describedRule) {
	for _, p := range all {
		add := func(source, description *string) {
			r := rule{aws.ToString(p.IpProtocol), aws.ToInt32(p.FromPort), aws.ToInt32(p.ToPort), aws.ToString(source)}
			rules = append(rules, describedRule{r, aws.ToString(description)})
		}
		for _, r := range p.IpRanges {
			add(r.CidrIp, r.Description)
		}
		for _, r := range p.Ipv6Ranges {
			add(r.CidrIpv6, r.Description)
		}
		for _, g := range p.UserIdGroupPairs {
			add(g.GroupId, g.Description)
		}
		for _, l := range p.PrefixListIds {
			add(l.PrefixListId, l.Description)
		}
	}
	return rules
}

// ruleChanges are what makes the rules of a group those that Kip wants.
type ruleChanges struct {
	add, remove []rule
	// open are rules that Kip does not want, by which more than Kip reaches the agents.
	open []rule
	// leave are other rules without a description that Kip does not want, with the ports of Kip's: a person made them.
	leave []rule
}

// reachesAgents reports whether a rule lets its source in to the port of agents.
func (r rule) reachesAgents() bool {
	return r.protocol == "-1" || r.protocol == "tcp" && r.from <= agentPort && agentPort <= r.to
}

// changesOf compares the rules that Kip wants with those that a group has. EC2 tells rules apart without their
// descriptions, so a rule of somebody else serves Kip as well.
func changesOf(wanted []rule, has []describedRule) (c ruleChanges) {
	for _, r := range wanted {
		if !slices.ContainsFunc(has, func(h describedRule) bool { return h.rule == r }) {
			c.add = append(c.add, r)
		}
	}
	for _, h := range has {
		switch wants := slices.Contains(wanted, h.rule); {
		case h.description == ownDescription && !wants:
			c.remove = append(c.remove, h.rule)
		case !wants && h.reachesAgents():
			c.open = append(c.open, h.rule)
		case h.description == "" && slices.ContainsFunc(wanted, func(r rule) bool {
			return r.protocol == h.protocol && r.from == h.from && r.to == h.to
		}):
			c.leave = append(c.leave, h.rule)
		}
	}
	return c
}

// agentPort is that of the agents, agentapi.Port, which only Kip dials.
const agentPort = 6421

// rule lets one source reach some ports of cells.
type rule struct {
	protocol string
	from, to int32
	source   string // a CIDR, or the ID of a security group
}
