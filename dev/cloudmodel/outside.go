package cloudmodel

import (
	"context"
	"net/netip"
)

// Disk is one of a model that an instance can be given.
type Disk struct {
	ID, Zone string
	GiB      int
	// Instance has the disk, or is to have it.
	Instance string
}

// Disks do with the machines behind instances what calls have done with disks.
type Disks interface {
	// Attach gives d.Instance a disk, which it makes if that is the first time.
	Attach(ctx context.Context, d Disk) error
	// Detach takes it from the instance.
	Detach(ctx context.Context, disk, instance string) error
	// Grow gives it the size of d, if there is one.
	Grow(ctx context.Context, d Disk) error
	// Delete removes it, if there is one.
	Delete(ctx context.Context, disk string) error
}

// Outbound is what of an instance reaches the internet. All else is dropped: an internet gateway knows the
// primary address of an interface alone, whatever other addresses and networks that has.
type Outbound struct {
	Primary netip.Addr
	// Pods is the network of the interface's other addresses.
	Pods netip.Prefix
	// Public is what the internet gateway makes of Primary; the zero address where it drops that, too.
	Public netip.Addr
	// NAT says that a NAT gateway translates any address.
	NAT bool
}
