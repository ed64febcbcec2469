package aws

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
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

// keepRules gives a group the rules that it is to have. Kip's own that it is not to have go once that is done, but
// for who may reach the agents: that goes only where it is surely known where Kip is.
func (c *Cloud) keepRules(ctx context.Context, vpc string, group foundGroup, surely bool) error {
	networks, err := c.networksOf(ctx, vpc)
	if err != nil {
		return err
	}
	changes := changesOf(c.rules(networks), group.rules)
	surplus := changes.remove
	if !surely {
		surplus = slices.DeleteFunc(surplus, func(r rule) bool { return r.from == agentPort })
	}
	err = c.authorise(ctx, group.id, changes.add)
	if codeOf(err) == codeManyRules && len(surplus) > 0 { // old and new ones do not fit beside each other
		if err := c.revoke(ctx, group.id, surplus); err != nil {
			return err
		}
		surplus, err = nil, c.authorise(ctx, group.id, changes.add)
	}
	if codeOf(err) == codeManyRules {
		return fmt.Errorf("add %d rules to security group %s, which has %d: remove rules that others made, or raise the quota: %w",
			len(changes.add), group.id, len(group.rules), err)
	}
	if err != nil {
		return err
	}
	c.tellOthers(group.id, changes)
	return c.revoke(ctx, group.id, surplus)
}

// tellOthers reports the rules of a group that others made and Kip does not want. Kip leaves them alone.
func (c *Cloud) tellOthers(group string, changes ruleChanges) {
	if left := rulesText(changes.leave); c.isNews("rules left alone in "+group, left) && left != "" {
		c.cfg.Log.Warn("the security group of the cells has rules without a description, which Kip did not make: "+
			"Kip leaves them alone; remove those that you do not need", "group", group, "rules", left)
	}
	c.tellOpen(group, changes)
}

// tellOpen reports the rules of a group by which more than Kip reaches the agents. Kip leaves them alone.
func (c *Cloud) tellOpen(group string, changes ruleChanges) {
	text := rulesText(changes.open)
	if !c.isNews("rules to agents in "+group, text) || text == "" {
		return
	}
	c.cfg.Log.Warn("rules that Kip does not want in the security group of the cells let more than Kip reach the port of agents, 6421: "+
		"Kip leaves them alone; narrow or remove them", "group", group, "rules", text)
	if c.cfg.AgentsOpen != nil {
		c.cfg.AgentsOpen(group, agentPort, text[:min(len(text), maxMessage)])
	}
}

// isNews reports whether the text differs from the one that was told of the subject last, and remembers it.
func (c *Cloud) isNews(subject, text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = map[string]string{}
	}
	if last, was := c.told[subject]; was && last == text {
		return false
	}
	c.told[subject] = text
	return true
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
