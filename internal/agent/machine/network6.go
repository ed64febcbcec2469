package machine

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/elotl/kip/internal/agent/dhcp"
)

const (
	// routerPoll is how often it is looked whether a router has told of DHCPv6, for as long
	// as routerLimit, in which each that is there is heard; later each renewRetry.
	routerPoll  = time.Second
	routerLimit = 30 * time.Second
	// leaseLimit6 bounds one attempt to get an address.
	leaseLimit6 = 40 * time.Second
)

// keep6 takes an address by DHCPv6 where a router says that it is given so, and keeps it until ctx
// ends. Nothing waits for it: Kip reaches a machine by its other address. Routes the router tells
// the kernel.
func (n *network) keep6(ctx context.Context) {
	if n.link == nil {
		return // the hypervisor tells of all addresses
	}
	keeper6{
		managed: func() (bool, error) { return dhcp.Managed(n.link.Attrs().Index) },
		lease:   n.lease6,
		say:     n.console.Say,
	}.keep(ctx)
}

// keeper6 keeps one address.
type keeper6 struct {
	// managed reports whether a router has told of DHCPv6.
	managed func() (bool, error)
	// lease asks for an address, or for the one of a lease again, and brings it into force.
	lease func(ctx context.Context, old dhcp.Lease6) (dhcp.Lease6, error)
	say   func(format string, args ...any)
}

// keep keeps it until ctx ends. What goes wrong is said once, until something else does.
func (k keeper6) keep(ctx context.Context) {
	began, last := time.Now(), ""
	say := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != last {
			last = text
			k.say("%s", text)
		}
	}
	var lease dhcp.Lease6
	for wait := routerPoll; ; {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if wait = renewRetry; time.Since(began) < routerLimit {
			wait = routerPoll
		}
		if !lease.Address.IsValid() {
			is, err := k.managed()
			if err != nil {
				say("DHCPv6: %v", err)
			}
			if !is {
				continue
			}
		}
		next, err := k.lease(ctx, lease)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait = renewRetry
			say("DHCPv6: %v", err)
		case lease.Address.IsValid() && next.Address != lease.Address:
			// One that gave up its own would be of no use to anybody.
			wait = renewRetry
			say("the network wants %s to become %s, which stays as it is", lease.Address, next.Address)
		case next.Renew == 0:
			return
		default:
			lease, wait, last = next, max(next.Renew, renewRetry), ""
		}
	}
}

// lease6 asks for an address, or for the one of a lease again, and brings it into force.
func (n *network) lease6(ctx context.Context, old dhcp.Lease6) (dhcp.Lease6, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseLimit6)
	defer cancel()
	name := n.link.Attrs().Name
	client, err := dhcp.Open6(name, n.link.Attrs().HardwareAddr)
	if err != nil {
		return dhcp.Lease6{}, err
	}
	defer client.Close()
	if old.Address.IsValid() {
		return client.Renew(ctx, old)
	}
	lease, err := client.Acquire(ctx)
	if err != nil {
		return dhcp.Lease6{}, err
	}
	// Without an end, as the other.
	ip := net.IPNet{IP: lease.Address.AsSlice(), Mask: net.CIDRMask(128, 128)}
	if err := netlink.AddrReplace(n.link, &netlink.Addr{IPNet: &ip}); err != nil {
		return dhcp.Lease6{}, fmt.Errorf("set the address %s: %w", lease.Address, err)
	}
	n.console.Say("%s has %s, too", name, lease.Address)
	return lease, nil
}
