package firewall

import (
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/agentapi"
)

// besideInterfaces is what the names of the cell's ends of the veths of pods beside the pod begin with (package network).
const besideInterfaces = "dset"

// beside is the chain by which pods beside the pod send from the cell's address: theirs are of this machine alone.
func (t *table) beside(fw *agentapi.Firewall) {
	if fw.Beside == nil {
		return
	}
	t.line("\tchain beside {\n\t\ttype nat hook postrouting priority srcnat; policy accept;")
	t.line("\t\toifname \"lo\" return")
	t.line("\t\toifname \"pod*\" return\n\t\toifname \"%s*\" return", besideInterfaces)
	t.line("\t\tip saddr %s meta l4proto { tcp, udp } masquerade to :%s", agentapi.BesideNetwork, sourcePorts)
	t.line("\t\tip saddr %s masquerade\n\t}", agentapi.BesideNetwork)
}

// besideChains are what the other chains ask of pods beside the pod. They send from their own addresses, and not to the metadata
// service, which may have the role of the cell's pod. Nobody but the cell reaches them other than by a host port.
func (t *table) besideChains(fw *agentapi.Firewall) {
	if fw == nil || fw.Beside == nil {
		return
	}
	t.line("\tchain own_of_beside {\n\t\tmeta nfproto ipv6 drop\n\t\tip saddr != %s drop\n\t}", agentapi.BesideNetwork)
	t.line("\tchain to_beside {\n\t\tct state established,related return\n\t\tct status dnat return\n\t\tdrop\n\t}")
}

// forwardBeside are the rules for what pods beside the pod send and are sent.
func (t *table) forwardBeside(fw *agentapi.Firewall) {
	if fw != nil && fw.Beside != nil {
		t.line("\t\tiifname \"%s*\" jump own_of_beside\n\t\tiifname \"%[1]s*\" jump metadata", besideInterfaces)
		t.line("\t\toifname \"%s*\" jump to_beside", besideInterfaces)
	}
}

// inputBeside are the rules for what pods beside the pod send to the cell.
func (t *table) inputBeside(fw *agentapi.Firewall) {
	if fw != nil && fw.Beside != nil {
		t.line("\t\tiifname \"%s*\" jump own_of_beside", besideInterfaces)
	}
}

// toBeside lets the pod reach host ports of pods beside it. They are its own node's, which policies do not bound.
func (t *table) toBeside(fw *agentapi.Firewall) {
	if fw.Beside != nil {
		t.line("\t\toifname \"%s*\" ct status dnat return", besideInterfaces)
	}
}

// hostPorts lets the pod reach the ports at which pods of the machine's network listen.
func (t *table) hostPorts(fw *agentapi.Firewall) {
	if fw.Beside == nil {
		return
	}
	for _, ports := range byProtocol(fw.Beside.HostPorts) {
		t.line("\t\tip saddr %s %s accept", fw.PodIP, ports)
	}
}

// validateBeside refuses what Kip would not send.
func validateBeside(b *agentapi.Beside) error {
	if b == nil {
		return nil
	}
	if b.PodUID == "" || len(b.PodUID) > 253 {
		return fmt.Errorf("beside.podUID %q must be the UID of the cell's pod", b.PodUID)
	}
	for _, p := range b.HostPorts {
		if !slices.Contains(protocols, p.Protocol) || p.First > p.Last || p.First == 0 {
			return fmt.Errorf("beside.hostPorts: %s %d-%d must be TCP, UDP or SCTP, and a range", p.Protocol, p.First, p.Last)
		}
		for _, port := range agentapi.OwnPorts {
			if p.First <= port && port <= p.Last {
				return fmt.Errorf("beside.hostPorts: %s %d-%d has port %d, which is the cell's own", p.Protocol, p.First, p.Last, port)
			}
		}
	}
	return nil
}
