package ec2

import (
	"net/netip"
	"slices"
	"strings"
)

// Outbound is what of an instance reaches the internet. All else is dropped: an internet gateway knows the
// primary address of an interface alone, whatever other addresses and prefixes that has. Sources: Amazon EC2
// User Guide, "Amazon EC2 instance IP addressing"; Amazon EKS User Guide, on the VPC CNI's SNAT, by which pods
// with secondary addresses need it.
type Outbound struct {
	Primary netip.Addr
	// Pods is the network of the secondary address, or the prefix of the interface.
	Pods netip.Prefix
	// Public is what the internet gateway makes of Primary; the zero address where it drops that, too.
	Public netip.Addr
	// NAT says that the subnet's default route leads to a NAT gateway, which translates any address.
	NAT bool
}

// OutboundOf says what of an instance reaches the internet, and whether there is such an instance.
func (m *Model) OutboundOf(instance string) (out Outbound, has bool) {
	for _, i := range m.sim.Truth() {
		if i.ID != instance || !i.ManagementIP.IsValid() {
			continue
		}
		l := m.launchOf(i)
		out = Outbound{Primary: i.ManagementIP, Pods: m.prefixOf(i.PodIP)}
		switch {
		case l.subnet.Public && l.public:
			out.Public = publicOf(i.ManagementIP)
		case !l.subnet.Public:
			out.NAT = m.hasNAT(l.subnet.VPC)
		}
		return out, true
	}
	return Outbound{}, false
}

// hasNAT says whether the private subnets of a VPC send to a NAT gateway by default.
func (m *Model) hasNAT(vpc string) bool {
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
