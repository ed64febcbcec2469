package ec2

import (
	"net/netip"
	"slices"
	"strings"
)

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
func (m *groups) changeRules(r *request, change func(has, named []Rule) ([]Rule, error)) (any, error) {
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
	rules, err := change(m.all[n].Rules, named)
	if err != nil {
		return nil, err
	}
	m.all[n].Rules = rules
	return doneXML{requestID, true}, nil
}

// among is the place of a rule in a list, -1 if it is not there. Two rules with different descriptions are the same:
// EC2 refuses the second as a duplicate. Source: https://github.com/londonaicentre/FLIP/pull/886, tried on EC2.
func (r Rule) among(list []Rule) int {
	return slices.IndexFunc(list, func(other Rule) bool {
		other.Description = r.Description
		return other == r
	})
}

func (m *groups) authorizeSecurityGroupIngress(r *request) (any, error) {
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
func (m *groups) revokeSecurityGroupIngress(r *request) (any, error) {
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
