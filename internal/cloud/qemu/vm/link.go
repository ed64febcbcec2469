package vm

import "net/netip"

// Link is what a machine is told of its network: internal/agent/machine reads it.
type Link struct {
	// Hardware is the card's address on the link.
	Hardware string `json:"hardware"`
	Hostname string `json:"hostname"`
	// Addresses are at most one of each family, with the link's prefix; Gateways the same.
	Addresses   []netip.Prefix `json:"addresses"`
	Gateways    []netip.Addr   `json:"gateways"`
	Nameservers []netip.Addr   `json:"nameservers,omitempty"`
}
