package firewall

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"

	"github.com/elotl/kip/internal/agentapi"
)

// unrouted are networks that no router forwards to: link-local, which has metadata services, and
// multicast.
const unrouted = "{ 169.254.0.0/16, 224.0.0.0/4 }"

// sourcePorts are those from which the cell sends what its pod sends: Linux' own for connections that a
// machine begins. A machine listens beyond them. Would a connection keep the agent's port as its source, its
// entry would be that of Kip's next connection from the other side to the agent, and lead that to the pod.
const sourcePorts = "32768-60999"

// masquerade is the chain that gives what the pod sends another source. Filters see the pod's own
// address: the forward hook comes before this one, and what answers has the pod's address again
// when it gets there. Only the first packet of a connection comes here, so a connection keeps the
// source that it began with.
func (t *table) masquerade(fw *agentapi.Firewall) {
	m := fw.Masquerade
	if m == nil {
		return
	}
	if len(m.Except) > 0 {
		networks := make([]string, len(m.Except))
		for i, p := range m.Except {
			networks[i] = p.String()
		}
		t.line("\tset direct {\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\telements = { %s }\n\t}", strings.Join(networks, ", "))
	}
	t.line("\tchain as_cell {\n\t\ttype nat hook postrouting priority srcnat; policy accept;")
	t.line("\t\toifname \"pod*\" return") // to itself, by way of a Service
	t.line("\t\tip daddr %s return", unrouted)
	if len(m.Except) > 0 {
		t.line("\t\tip daddr @direct return")
	}
	t.line("\t\tip saddr %s meta l4proto { tcp, udp } snat ip to %s:%s", fw.PodIP, m.As, sourcePorts)
	t.line("\t\tip saddr %s snat ip to %s\n\t}", fw.PodIP, m.As)
}

// validateMasquerade refuses what Kip would not send.
func validateMasquerade(m *agentapi.Masquerade) error {
	if m == nil {
		return nil
	}
	if !m.As.Is4() {
		return fmt.Errorf("masquerade.as %q must be an IPv4 address", m.As)
	}
	var last netip.Addr // of the network before
	for _, p := range m.Except {
		if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
			return fmt.Errorf("masquerade.except: %q must be an IPv4 network, without bits beyond its length", p)
		}
		if last.IsValid() && p.Addr().Compare(last) <= 0 { // nft takes no set whose networks overlap
			return fmt.Errorf("masquerade.except: %q must be behind the network before it", p)
		}
		last = netipx.PrefixLastIP(p)
	}
	return nil
}
