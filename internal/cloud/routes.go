package cloud

import (
	"context"
	"fmt"
	"net/netip"
)

// Router is a cloud whose network can be told to send what is for other networks to an instance.
// Both methods are idempotent, and change nothing that leads elsewhere.
type Router interface {
	// Route has the network of the cells send what is for these prefixes to a running instance,
	// from whichever of their subnets it comes, and lets that instance send what is not from its
	// own address. The error is a *RouteTakenError where a prefix leads elsewhere, ErrNotFound
	// where the instance is not there, ErrRefused where no wait helps.
	Route(ctx context.Context, instance string, to []netip.Prefix) error
	// Unroute takes those routes back that lead to the instance, also once it has ended.
	Unroute(ctx context.Context, instance string, to []netip.Prefix) error
}

// RouteTakenError says that a prefix leads elsewhere.
type RouteTakenError struct {
	To    netip.Prefix
	Table string // in which it does, in the cloud's words
	// Target is where it leads: an instance, or whatever else the cloud has.
	Target string
}

func (e *RouteTakenError) Error() string {
	return fmt.Sprintf("%s leads to %s in route table %s", e.To, e.Target, e.Table)
}
