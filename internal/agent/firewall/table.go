package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/agentapi"
)

// closed is the table before there are rules for the pod.
var closed = rendered(nil, "", nil, true)

// digestChain begins the name of a chain without rules, whose name says which
// rules are in force: the table itself is the one record that cannot be wrong.
const digestChain = "digest_"

// The addresses of metadata services. Something on the network behind them
// hands credentials to whoever asks.
//
//	169.254.169.254, fd00:ec2::254  EC2, GCE, Azure and others
//	fd20:ce::254                    GCE, IPv6
//	169.254.170.2, 169.254.170.23, fd00:ec2::23  credentials of ECS tasks and EKS pods
//	168.63.129.16                   Azure's WireServer, on two of its ports
//
// The first is also the resolver of GCE: names may be asked for.
const metadataRules = `		meta l4proto { tcp, udp } th dport 53 return
		ip daddr { 169.254.169.254, 169.254.170.2, 169.254.170.23 } reject with icmpx admin-prohibited
		ip6 daddr { fd00:ec2::254, fd00:ec2::23, fd20:ce::254 } reject with icmpx admin-prohibited
		ip daddr 168.63.129.16 tcp dport { 80, 32526 } reject with icmpx admin-prohibited
`

// table is a program of nft that is being written.
type table struct{ strings.Builder }

func (t *table) line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

// rendered is the table for these rules, for none when it is nil, as a program of
// nft that replaces what there was. behind are networks that the pod is the way to. exempt lets
// the agent reach metadata services.
func rendered(fw *agentapi.Firewall, digest string, behind []netip.Prefix, exempt bool) []byte {
	var t table
	t.line("table inet kip")
	t.line("delete table inet kip")
	t.line("table inet kip {")
	if fw != nil {
		t.line("\tchain %s%s {\n\t}", digestChain, digest)
		addressSets(&t.Builder, "ingress", fw.Ingress)
		addressSets(&t.Builder, "egress", fw.Egress)
	}

	t.line("\tchain metadata {\n%s\t}", metadataRules)
	t.line("\tchain agent {")
	if exempt {
		t.line("\t\t%s", exemption)
	}
	t.line("\t}")
	if fw != nil {
		directionChain(&t.Builder, "ingress", "saddr", fw.Ingress)
		directionChain(&t.Builder, "egress", "daddr", fw.Egress)
		t.masquerade(fw)
		t.beside(fw)
	}

	metadata := "\t\tjump metadata\n"
	if fw != nil && fw.AllowMetadata {
		metadata = ""
	}
	if fw != nil && len(behind) > 0 {
		t.line("\tchain passing {")
		t.sends(fw, metadata)
		t.line("\t}")
	}
	t.line("\tchain from_pod {")
	t.fromPod(fw, metadata, behind)
	t.line("\t}")
	t.line("\tchain to_pod {")
	t.toPod(fw)
	t.line("\t}")
	t.line("\tchain to_cell {")
	t.toCell(fw)
	t.line("\t}")

	t.besideChains(fw)
	t.line("\tchain forward {\n\t\ttype filter hook forward priority filter; policy accept;")
	t.forwardBeside(fw)
	t.line("\t\tiifname \"pod*\" jump from_pod\n\t\toifname \"pod*\" jump to_pod\n\t}")
	t.line("\tchain input {\n\t\ttype filter hook input priority filter; policy accept;")
	t.inputBeside(fw)
	t.line("\t\tiifname \"pod*\" goto to_cell")
	// Whatever route_localnet is set for, a neighbour does not get at loopback.
	t.line("\t\tiifname != \"lo\" ip daddr 127.0.0.0/8 ct state new drop\n\t}")
	t.line("\tchain output {\n\t\ttype filter hook output priority filter; policy accept;\n\t\tjump agent")
	t.WriteString(metadata)
	t.line("\t}\n}")
	return []byte(t.String())
}

// fromPod are the rules for what the pod sends.
func (t *table) fromPod(fw *agentapi.Firewall, metadata string, behind []netip.Prefix) {
	if fw == nil {
		t.line("\t\tdrop")
		return
	}
	t.onlyIPv6("saddr", fw)
	for _, p := range behind {
		t.line("\t\tip saddr %s goto passing", p)
	}
	t.line("\t\tip saddr != %s drop", fw.PodIP)
	t.sends(fw, metadata)
}

// sends are the rules for what comes from whom it may.
func (t *table) sends(fw *agentapi.Firewall, metadata string) {
	t.WriteString(metadata)
	t.line("\t\tct state established,related return")
	t.line("\t\toifname \"pod*\" return") // to itself, by way of a Service
	t.toBeside(fw)
	if fw.Egress.Isolated {
		t.line("\t\tgoto egress")
	}
}

// toPod are the rules for what the pod is sent.
func (t *table) toPod(fw *agentapi.Firewall) {
	if fw == nil {
		t.line("\t\tdrop")
		return
	}
	t.onlyIPv6("daddr", fw)
	t.line("\t\tct state established,related return")
	t.line("\t\tiifname \"pod*\" return")
	if fw.Ingress.Isolated {
		t.line("\t\tgoto ingress")
	}
}

// toCell are the rules for what the pod sends to its own cell.
func (t *table) toCell(fw *agentapi.Firewall) {
	if fw != nil {
		t.line("\t\tct state established,related accept")
		t.line("\t\tmeta l4proto 1 accept") // ICMP: a cell has no /etc/protocols
		t.hostPorts(fw)
		t.line("\t\tip saddr %s reject with icmpx admin-prohibited", fw.PodIP)
		if fw.PodIPv6.IsValid() {
			// Echoes, and what neighbours are found by. Never a router's advertisement
			// or redirect: the cell would send its own traffic by way of the pod.
			t.line("\t\tip6 saddr { ::, %s, fe80::/10 } icmpv6 type { 128, 135, 136 } accept", fw.PodIPv6)
			t.line("\t\tip6 saddr %s reject with icmpx admin-prohibited", fw.PodIPv6)
		}
	}
	t.line("\t\tdrop")
}

// onlyIPv6 drops what has another IPv6 address than the pod's, all if it has none.
func (t *table) onlyIPv6(side string, fw *agentapi.Firewall) {
	if fw.PodIPv6.IsValid() {
		t.line("\t\tip6 %s != %s drop", side, fw.PodIPv6)
	} else {
		t.line("\t\tmeta nfproto ipv6 drop")
	}
}

// families of addresses, as nft calls them.
var families = []struct {
	suffix, setType, match string
	has                    func(netip.Addr) bool
}{
	{"v4", "ipv4_addr", "ip", netip.Addr.Is4},
	{"v6", "ipv6_addr", "ip6", netip.Addr.Is6},
}

func addressSets(b *strings.Builder, name string, d agentapi.Direction) {
	for i, a := range d.Allowed {
		for _, f := range families {
			first := true
			for _, p := range a.Addresses {
				if !f.has(p.Addr()) {
					continue
				}
				if first {
					fmt.Fprintf(b, "\tset %s%d%s {\n\t\ttype %s\n\t\tflags interval\n\t\telements = { ", name, i, f.suffix, f.setType)
				} else {
					b.WriteString(", ")
				}
				first = false
				if p.IsSingleIP() {
					b.WriteString(p.Addr().String())
				} else {
					b.WriteString(p.String())
				}
			}
			if !first {
				b.WriteString(" }\n\t}\n")
			}
		}
	}
}

// directionChain returns, for what is allowed, to the chain that asked.
func directionChain(b *strings.Builder, name, address string, d agentapi.Direction) {
	if !d.Isolated {
		return
	}
	fmt.Fprintf(b, "\tchain %s {\n", name)
	for i, a := range d.Allowed {
		var peers []string
		if a.Any {
			peers = []string{""}
		}
		for _, f := range families {
			if slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return f.has(p.Addr()) }) {
				peers = append(peers, fmt.Sprintf("%s %s @%s%d%s ", f.match, address, name, i, f.suffix))
			}
		}
		for _, peer := range peers {
			if a.AnyPort {
				fmt.Fprintf(b, "\t\t%sreturn\n", peer)
				continue
			}
			for _, ports := range byProtocol(a.Ports) {
				fmt.Fprintf(b, "\t\t%s%s return\n", peer, ports)
			}
		}
	}
	b.WriteString("\t\tdrop\n\t}\n")
}

// byProtocol matches ports, a text for each protocol.
func byProtocol(ports []agentapi.Ports) (matches []string) {
	for _, protocol := range protocols {
		var ranges []string
		for _, p := range ports {
			switch {
			case p.Protocol != protocol:
			case p.First == p.Last:
				ranges = append(ranges, fmt.Sprint(p.First))
			default:
				ranges = append(ranges, fmt.Sprintf("%d-%d", p.First, p.Last))
			}
		}
		if len(ranges) > 0 {
			matches = append(matches, fmt.Sprintf("%s dport { %s }", strings.ToLower(protocol), strings.Join(ranges, ", ")))
		}
	}
	return matches
}

var protocols = []string{"SCTP", "TCP", "UDP"}

// validate refuses what Kip would not send.
func validate(fw agentapi.Firewall) error {
	if !fw.PodIP.Is4() {
		return fmt.Errorf("podIP %q must be an IPv4 address", fw.PodIP)
	}
	if a := fw.PodIPv6; a.IsValid() && (!a.Is6() || a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast()) {
		return fmt.Errorf("podIPv6 %q must be an IPv6 address that can be routed to", a)
	}
	for n, d := range []agentapi.Direction{fw.Ingress, fw.Egress} {
		for i, a := range d.Allowed {
			field := fmt.Sprintf("%s.allowed[%d]", []string{"ingress", "egress"}[n], i)
			if a.Any && len(a.Addresses) > 0 {
				return fmt.Errorf("%s: any address, and addresses: only one of them", field)
			}
			for _, p := range a.Addresses {
				if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
					return fmt.Errorf("%s.addresses: %q must be a network, without bits beyond its length", field, p)
				}
			}
			if a.AnyPort == (len(a.Ports) > 0) {
				return fmt.Errorf("%s: any port, or ports: one of them", field)
			}
			for _, p := range a.Ports {
				if !slices.Contains(protocols, p.Protocol) || p.First > p.Last {
					return fmt.Errorf("%s.ports: %s %d-%d must be TCP, UDP or SCTP, and a range", field, p.Protocol, p.First, p.Last)
				}
			}
		}
	}
	if err := validateBeside(fw.Beside); err != nil {
		return err
	}
	return validateMasquerade(fw.Masquerade)
}
