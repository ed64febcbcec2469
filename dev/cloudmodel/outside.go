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

// Outbound is what of an instance reaches the internet, as its cloud has it. All else is dropped.
type Outbound struct {
	// Primary is the instance's own address, and Pods the network of its further ones.
	Primary netip.Addr
	Pods    netip.Prefix
	// Public is what Primary is translated to; the zero address where it is dropped, too.
	Public netip.Addr
	// NAT says that something beyond the instances translates any of these addresses.
	NAT bool
}
