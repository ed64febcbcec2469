package ec2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// groups are the security groups.
type groups struct {
	*base
	networks     *networks
	launched     *launched
	mountTargets *mountTargets

	all []Group
}

// group is one of the groups that exist.
func (m *groups) group(id string) (Group, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.groupAt(id); n >= 0 {
		return m.all[n], true
	}
	return Group{}, false
}

func (m *groups) groupAt(id string) int {
	return slices.IndexFunc(m.all, func(g Group) bool { return g.ID == id })
}

// All are the security groups that exist.
func (m *groups) All() []Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
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

func (m *groups) describeSecurityGroups(r *request) (any, error) {
	wanted := r.filters("vpc-id", "group-name", "group-id", "tag:", "tag-key")
	if err := m.one(r); err != nil {
		return nil, err
	}
	var all []groupInfoXML
	for _, g := range m.All() {
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

func (m *groups) createSecurityGroup(r *request) (any, error) {
	name, about, vpc, dry := r.text("GroupName"), r.text("GroupDescription"), r.text("VpcId"), r.flag("DryRun")
	set := r.tagSpecifications("security-group")["security-group"]
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
	if err := m.model.Arrive(r.ctx, sim.KindDeleteOwned, nil); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(m.networks.Subnets(), func(s Subnet) bool { return s.VPC == vpc }) {
		return nil, bad("InvalidVpcID.NotFound", "The vpc ID '%s' does not exist", vpc)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.ContainsFunc(m.all, func(g Group) bool { return g.Name == name && g.VPC == vpc }) {
		return nil, bad("InvalidGroup.Duplicate", "The security group '%s' already exists for VPC '%s'", name, vpc)
	}
	m.made++
	id := fmt.Sprintf("sg-%017x", m.made)
	m.all = append(m.all, Group{
		ID:   id,
		Name: name,
		VPC:  vpc,
		Tags: set,
	})
	return createdGroupXML{requestID, id}, nil
}

// mayMakeGroup asks the policy about the group, its VPC and its tags.
func (m *groups) mayMakeGroup(r *request, vpc string, set map[string]string) error {
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

// mayTouchGroup lets a call arrive that changes a group, if it is there and the policy
// allows it.
func (m *groups) mayTouchGroup(r *request, id string) error {
	if err := m.model.Arrive(r.ctx, sim.KindDeleteOwned, nil); err != nil {
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

func (m *groups) deleteSecurityGroup(r *request) (any, error) {
	id := r.text("GroupId")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.mayTouchGroup(r, id); err != nil {
		return nil, err
	}
	for _, i := range m.sim.Truth() {
		if slices.ContainsFunc(m.launched.launchOf(i).groups, func(g Group) bool { return g.ID == id }) && i.State != cloud.Gone {
			return nil, bad("DependencyViolation", "resource %s has a dependent object", id)
		}
	}
	if slices.ContainsFunc(m.mountTargets.All(), func(t MountTarget) bool { return slices.Contains(t.Groups, id) }) {
		return nil, bad("DependencyViolation", "resource %s has a dependent object", id)
	}
	// Interfaces that outlived their instances are still members: of Kip's own group all of that Kip's.
	g, _ := m.group(id)
	for _, p := range m.sim.OwnedResources.OwnedNow() {
		if owner := g.Tags[cloud.TagOwner]; owner != "" && p.Instance == "" && p.Tags[cloud.TagOwner] == owner {
			return nil, bad("DependencyViolation", "resource %s has a dependent object", id)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = slices.DeleteFunc(m.all, func(g Group) bool { return g.ID == id })
	return doneXML{requestID, true}, nil
}
