package cloud

import (
	"context"
	"net/netip"
)

// Egress is a cloud that gives the public address of a machine to what comes from the machine's own
// address alone. What a pod sends to the internet from its address is lost.
type Egress interface {
	// Ways returns the way to the internet of each subnet. A subnet that the cloud does not know
	// has none.
	Ways(ctx context.Context, subnets ...string) (map[string]Way, error)
}

// Way is how machines of a subnet reach what is outside of it.
type Way struct {
	// Internet says that machines with a public address reach the internet by it.
	Internet bool `json:"internet,omitempty"`
	// Direct are the IPv4 networks that pods reach from their own address, disjoint and sorted:
	// those of the machines' network, and those that its routes lead to by another way.
	Direct []netip.Prefix `json:"direct,omitempty"`
}
