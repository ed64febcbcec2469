package ec2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// vpcNetwork is that of a VPC for which the account has no others.
const vpcNetwork = "10.0.0.0/8"

type vpcXML struct {
	ID       string       `xml:"vpcId"`
	Networks []networkXML `xml:"cidrBlockAssociationSet>item"`
}

type networkXML struct {
	CIDR  string `xml:"cidrBlock"`
	State string `xml:"cidrBlockState>state"`
}

// networksOf are those of a VPC.
func (m *Model) networksOf(vpc string) (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.networks[vpc] {
		all = append(all, p.String())
	}
	if all == nil {
		return []string{vpcNetwork}
	}
	return all
}

// describeVpcs shows each VPC with the networks that it has, and one that it had.
func (m *Model) describeVpcs(r *request) (any, error) {
	wanted := r.filters("vpc-id")
	if err := m.one(r); err != nil {
		return nil, err
	}
	vpcs := map[string]bool{}
	for _, s := range m.Subnets() {
		vpcs[s.VPC] = wanted.match(func(string) []string { return []string{s.VPC} })
	}
	var all []vpcXML
	for _, id := range sortedKeys(vpcs) {
		if vpcs[id] {
			networks := []networkXML{}
			for _, p := range m.networksOf(id) {
				networks = append(networks, networkXML{p, "associated"})
			}
			all = append(all, vpcXML{id, append(networks, networkXML{"192.168.0.0/16", "disassociated"})})
		}
	}
	return list("vpcSet", all), nil
}

// group is one of the groups that exist.
func (m *Model) group(id string) (Group, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.groupAt(id); n >= 0 {
		return m.groups[n], true
	}
	return Group{}, false
}

func (m *Model) groupAt(id string) int {
	return slices.IndexFunc(m.groups, func(g Group) bool { return g.ID == id })
}

// Groups are the security groups that exist.
func (m *Model) Groups() []Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.groups)
}

type groupInfoXML struct {
	ID    string          `xml:"groupId"`
	Name  string          `xml:"groupName"`
	VPC   string          `xml:"vpcId"`
	Rules []permissionXML `xml:"ipPermissions>item"`
	Tags  []tagXML        `xml:"tagSet>item"`
}

type permissionXML struct {
	Protocol string      `xml:"ipProtocol"`
	From     int         `xml:"fromPort"`
	To       int         `xml:"toPort"`
	Sources  []sourceXML `xml:"ipRanges>item"`
	Sources6 []sourceXML `xml:"ipv6Ranges>item"`
	Groups   []sourceXML `xml:"groups>item"`
}

// sourceXML has one of its fields, besides the description of the rule.
type sourceXML struct {
	CIDR        string `xml:"cidrIp,omitempty"`
	CIDR6       string `xml:"cidrIpv6,omitempty"`
	Group       string `xml:"groupId,omitempty"`
	Description string `xml:"description,omitempty"`
}

func (m *Model) describeSecurityGroups(r *request) (any, error) {
	wanted := r.filters("vpc-id", "group-name", "group-id", "tag:", "tag-key")
	if err := m.one(r); err != nil {
		return nil, err
	}
	var all []groupInfoXML
	for _, g := range m.Groups() {
		if !wanted.match(func(name string) []string {
			if own, ok := map[string]string{"vpc-id": g.VPC, "group-name": g.Name, "group-id": g.ID}[name]; ok {
				return []string{own}
			}
			return tagValues(g.Tags, name)
		}) {
			continue
		}
		x := groupInfoXML{
			ID:   g.ID,
			Name: g.Name,
			VPC:  g.VPC,
			Tags: tagSet(g.Tags),
		}
		for _, rule := range g.Rules {
			p := permissionXML{Protocol: rule.Protocol, From: rule.From, To: rule.To}
			switch prefix, err := netip.ParsePrefix(rule.Source); {
			case err != nil:
				p.Groups = []sourceXML{{Group: rule.Source, Description: rule.Description}}
			case prefix.Addr().Is6():
				p.Sources6 = []sourceXML{{CIDR6: rule.Source, Description: rule.Description}}
			default:
				p.Sources = []sourceXML{{CIDR: rule.Source, Description: rule.Description}}
			}
			x.Rules = append(x.Rules, p)
		}
		all = append(all, x)
	}
	return paged(r, "securityGroupInfo", m.cfg.PageSize, all, func(g groupInfoXML) string { return g.ID }), nil
}

type createdGroupXML struct {
	RequestID string `xml:"requestId"`
	ID        string `xml:"groupId"`
}

func (m *Model) createSecurityGroup(r *request) (any, error) {
	name, about, vpc, dry := r.text("GroupName"), r.text("GroupDescription"), r.text("VpcId"), r.flag("DryRun")
	set := m.tagSpecifications(r.form, "security-group")["security-group"]
	if name == "" || about == "" || len(name) > 255 || strings.HasPrefix(name, "sg-") {
		r.bad("InvalidParameterValue", "A group has a name, not like an ID, and a description")
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.mayMakeGroup(r, vpc, set); err != nil {
		return nil, err
	}
	if dry {
		return nil, dryRun
	}
	if err := m.Arrive(r.ctx, sim.KindDeleteParts, nil); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(m.Subnets(), func(s Subnet) bool { return s.VPC == vpc }) {
		return nil, bad("InvalidVpcID.NotFound", "The vpc ID '%s' does not exist", vpc)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.ContainsFunc(m.groups, func(g Group) bool { return g.Name == name && g.VPC == vpc }) {
		return nil, bad("InvalidGroup.Duplicate", "The security group '%s' already exists for VPC '%s'", name, vpc)
	}
	m.made++
	id := fmt.Sprintf("sg-%017x", m.made)
	m.groups = append(m.groups, Group{
		ID:   id,
		Name: name,
		VPC:  vpc,
		Tags: set,
	})
	return createdGroupXML{requestID, id}, nil
}

// mayMakeGroup asks the policy about the group, its VPC and its tags.
func (m *Model) mayMakeGroup(r *request, vpc string, set map[string]string) error {
	group, about := m.arn("security-group/*"), tagged("RequestTag", set)
	if err := m.may(r, "ec2:CreateSecurityGroup", group, about); err != nil {
		return err
	}
	if err := m.may(r, "ec2:CreateSecurityGroup", m.arn("vpc/"+vpc), nil); err != nil || len(set) == 0 {
		return err
	}
	about["ec2:CreateAction"] = []string{"CreateSecurityGroup"}
	return m.may(r, "ec2:CreateTags", group, about)
}

// What a description is made of. Source: EC2 API reference, "IpRange".
const (
	maxDescription        = 255
	descriptionCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ._-:/()#,@[]+=&;{}!$*"
)

// rules reads those of a call.
func rules(f *form) (all []Rule) {
	for _, p := range f.each("IpPermissions") {
		one := Rule{Protocol: p.text("IpProtocol"), From: p.number("FromPort"), To: p.number("ToPort")}
		icmp, ports := strings.HasPrefix(one.Protocol, "icmp"), one.From >= 0 && one.To <= 65535 && one.From <= one.To
		if !slices.Contains([]string{"tcp", "udp", "icmp", "icmpv6"}, one.Protocol) || !icmp && !ports {
			f.bad("InvalidParameterValue", "Invalid rule for protocol %s: %d to %d", one.Protocol, one.From, one.To)
		}
		add := func(source string, at *form) {
			one.Source, one.Description = source, at.text("Description")
			if len(one.Description) > maxDescription || strings.Trim(one.Description, descriptionCharacters) != "" {
				f.bad("InvalidParameterValue", "Invalid rule description '%s'", one.Description)
			}
			all = append(all, one)
		}
		for list, key := range map[string]string{"IpRanges": "CidrIp", "Ipv6Ranges": "CidrIpv6"} {
			for _, s := range p.each(list) {
				cidr := s.text(key)
				if prefix, err := netip.ParsePrefix(cidr); err != nil || prefix != prefix.Masked() || prefix.Addr().Is6() != (key == "CidrIpv6") {
					f.bad("InvalidParameterValue", "CIDR block %s is malformed", cidr)
				}
				add(cidr, s)
			}
		}
		for _, g := range p.each("Groups") {
			add(g.text("GroupId"), g)
		}
	}
	return all
}

// changeRules is a call that changes the rules of a group.
func (m *Model) changeRules(r *request, change func(has, named []Rule) ([]Rule, error)) (any, error) {
	id, named := r.text("GroupId"), rules(r.form)
	if len(named) == 0 {
		r.bad("MissingParameter", "The request must contain the parameter ipPermissions")
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.mayTouchGroup(r, id); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.groupAt(id)
	if n < 0 {
		return nil, noGroup(id)
	}
	rules, err := change(m.groups[n].Rules, named)
	if err != nil {
		return nil, err
	}
	m.groups[n].Rules = rules
	return doneXML{requestID, true}, nil
}

// mayTouchGroup lets a call arrive that changes a group, if it is there and the policy
// allows it.
func (m *Model) mayTouchGroup(r *request, id string) error {
	if err := m.Arrive(r.ctx, sim.KindDeleteParts, nil); err != nil {
		return err
	}
	g, ok := m.group(id)
	if !ok {
		return noGroup(id)
	}
	return m.may(r, "ec2:"+r.action, m.arn("security-group/"+id), tagged("ResourceTag", g.Tags))
}

func noGroup(id string) error {
	return bad("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
}

// among is the place of a rule in a list, -1 if it is not there. Two rules with different descriptions are the same:
// EC2 refuses the second as a duplicate. Source: https://github.com/londonaicentre/FLIP/pull/886, tried on EC2.
func (r Rule) among(list []Rule) int {
	return slices.IndexFunc(list, func(other Rule) bool {
		other.Description = r.Description
		return other == r
	})
}

func (m *Model) authorizeSecurityGroupIngress(r *request) (any, error) {
	return m.changeRules(r, func(has, named []Rule) ([]Rule, error) {
		all := slices.Clone(has)
		for n, rule := range named {
			if rule.among(named[:n]) >= 0 {
				return nil, bad("InvalidParameterValue", "The same permission must not appear multiple times")
			}
			if rule.among(all) >= 0 {
				return nil, bad("InvalidPermission.Duplicate", "the specified rule already exists")
			}
			all = append(all, rule)
		}
		if len(all) > maxRules {
			return nil, bad("RulesPerSecurityGroupLimitExceeded", "The maximum number of rules per security group has been reached.")
		}
		return all, nil
	})
}

// maxRules are those of one direction (Amazon VPC User Guide, "Amazon VPC quotas").
const maxRules = 60

// revokeSecurityGroupIngress needs no descriptions. Source: EC2 API reference, "RevokeSecurityGroupIngress".
func (m *Model) revokeSecurityGroupIngress(r *request) (any, error) {
	return m.changeRules(r, func(has, named []Rule) ([]Rule, error) {
		for _, rule := range named {
			if rule.among(has) < 0 {
				return nil, errNoRule
			}
		}
		return slices.DeleteFunc(slices.Clone(has), func(rule Rule) bool { return rule.among(named) >= 0 }), nil
	})
}

var errNoRule = bad("InvalidPermission.NotFound", "The specified rule does not exist in this security group.")

func (m *Model) deleteSecurityGroup(r *request) (any, error) {
	id := r.text("GroupId")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.mayTouchGroup(r, id); err != nil {
		return nil, err
	}
	for _, i := range m.sim.Truth() {
		if slices.ContainsFunc(m.launchOf(i).groups, func(g Group) bool { return g.ID == id }) && i.State != cloud.Gone {
			return nil, bad("DependencyViolation", "resource %s has a dependent object", id)
		}
	}
	if slices.ContainsFunc(m.MountTargets(), func(t MountTarget) bool { return slices.Contains(t.Groups, id) }) {
		return nil, bad("DependencyViolation", "resource %s has a dependent object", id)
	}
	// Interfaces that outlived their instances are still members: of Kip's own group all of that Kip's.
	g, _ := m.group(id)
	for _, p := range m.sim.PartsNow() {
		if owner := g.Tags[cloud.TagOwner]; owner != "" && p.Instance == "" && p.Tags[cloud.TagOwner] == owner {
			return nil, bad("DependencyViolation", "resource %s has a dependent object", id)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.groups = slices.DeleteFunc(m.groups, func(g Group) bool { return g.ID == id })
	return doneXML{requestID, true}, nil
}
