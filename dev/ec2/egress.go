package ec2

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/elotl/kip/dev/cloudmodel"
)

// OutboundOf says what of an instance reaches the internet, and whether there is such an instance. An internet gateway knows the primary
// address of an interface alone, whatever other addresses and networks that has; a NAT gateway is that to which the subnet's default route
// leads. Sources: Amazon EC2 User Guide, "Amazon EC2 instance
// IP addressing"; Amazon EKS User Guide, on the VPC CNI's SNAT, by which pods with secondary addresses need it.
func (m *routing) OutboundOf(instance string) (out cloudmodel.Outbound, has bool) {
	for _, i := range m.sim.Truth() {
		if i.ID != instance || !i.ManagementIP.IsValid() {
			continue
		}
		l := m.launched.launchOf(i)
		out = cloudmodel.Outbound{Primary: i.ManagementIP, Pods: m.prefixOf(i.PodIP)}
		switch {
		case l.subnet.Public && l.public:
			out.Public = publicOf(i.ManagementIP)
		case !l.subnet.Public:
			out.NAT = m.hasNAT(l.subnet.VPC)
		}
		return out, true
	}
	return cloudmodel.Outbound{}, false
}

// hasNAT says whether the private subnets of a VPC send to a NAT gateway by default.
func (m *routing) hasNAT(vpc string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.given, func(r Route) bool {
		return r.Table == privateTable+vpc && r.To == netip.PrefixFrom(netip.IPv4Unspecified(), 0) && strings.HasPrefix(r.Target, "nat-")
	})
}

// NATRoute is the default route of a VPC's private subnets to a NAT gateway, for Config.Routes.
func NATRoute(vpc string) Route {
	return Route{Table: privateTable + vpc, To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Target: "nat-0123456789abcdef0"}
}
