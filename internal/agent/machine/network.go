package machine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/dhcp"
	"github.com/elotl/kip/internal/agent/userdata"
	"github.com/elotl/kip/internal/netdump"
)

const (
	// cardLimit bounds the wait for a network card, and cardPoll is how often it is
	// looked for. Those of some hypervisors come after the drivers.
	cardLimit = 10 * time.Second
	cardPoll  = 20 * time.Millisecond
	// leaseLimit bounds the wait for an address.
	leaseLimit = time.Minute
	// renewRetry is the pause after a lease was not renewed, and renewLimit what one
	// attempt may take.
	renewRetry = time.Minute
	renewLimit = 20 * time.Second
)

// network is the machine's way out.
type network struct {
	console *console.Console
	link    netlink.Link
	lease   dhcp.Lease
}

// up brings into force what the hypervisor tells of the network. Where it tells nothing, it
// brings the cards up and takes the first lease that one of them gets.
func (n *network) up(ctx context.Context) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	document, err := userdata.QEMUNetwork()
	if err != nil {
		return fmt.Errorf("read the network that the hypervisor tells of: %w", err)
	}
	if document != nil {
		return n.obey(ctx, document)
	}
	found, err := wait(ctx, func() ([]netlink.Link, error) { return cards("/sys/class/net") })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leaseLimit)
	defer cancel()
	type result struct {
		link  netlink.Link
		lease dhcp.Lease
		err   error
	}
	results := make(chan result, len(found))
	for _, l := range found {
		go func() {
			lease, err := acquire(ctx, l)
			results <- result{l, lease, err}
		}()
	}
	var errs []error
	for range found {
		r := <-results
		if r.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.link.Attrs().Name, r.err))
			continue
		}
		if n.link == nil {
			n.link, n.lease = r.link, r.lease
			cancel() // the others need none
		}
	}
	if n.link == nil {
		return errors.Join(errs...)
	}
	if err := apply(n.link, n.lease); err != nil {
		return err
	}
	n.console.Say("%s has %s", n.link.Attrs().Name, n.lease.Address)
	return nil
}

// wait looks for cards until there are some.
func wait(ctx context.Context, look func() ([]netlink.Link, error)) ([]netlink.Link, error) {
	ctx, cancel := context.WithTimeout(ctx, cardLimit)
	defer cancel()
	for {
		found, err := look()
		if err != nil || len(found) > 0 {
			return found, err
		}
		timer := time.NewTimer(cardPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("no network card after %v: the machine has none, or none that this image has a driver for", cardLimit)
		case <-timer.C:
		}
	}
}

// cards are the network devices with hardware behind them.
func cards(sys string) ([]netlink.Link, error) {
	all, err := netdump.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	var out []netlink.Link
	for _, l := range all {
		if _, err := os.Stat(filepath.Join(sys, l.Attrs().Name, "device")); err == nil {
			out = append(out, l)
		}
	}
	return withoutFunctions(sys, out), nil
}

// hyperV is the driver of Hyper-V's network card, as Azure's machines have it.
const hyperV = "hv_netvsc"

// withoutFunctions leaves out virtual functions that Hyper-V's cards send by: Azure's accelerated
// networking. Such a function has the address of its card, and DHCP would give it the card's lease,
// but Azure takes the function away for maintenance of the host, with all addresses and routes
// (https://github.com/Azure/azure-vm-utils/issues/106). The driver marks one as a slave only some
// time after it has come, so what tells it is its address.
func withoutFunctions(sys string, all []netlink.Link) []netlink.Link {
	isHyperV := func(l netlink.Link) bool {
		driver, err := os.Readlink(filepath.Join(sys, l.Attrs().Name, "device/driver"))
		return err == nil && filepath.Base(driver) == hyperV
	}
	taken := map[string]bool{}
	for _, l := range all {
		if isHyperV(l) {
			taken[l.Attrs().HardwareAddr.String()] = true
		}
	}
	return slices.DeleteFunc(all, func(l netlink.Link) bool { return taken[l.Attrs().HardwareAddr.String()] && !isHyperV(l) })
}

// acquire brings a card up and asks for a lease.
func acquire(ctx context.Context, l netlink.Link) (dhcp.Lease, error) {
	name := l.Attrs().Name
	if err := netlink.LinkSetUp(l); err != nil {
		return dhcp.Lease{}, fmt.Errorf("bring it up: %w", err)
	}
	conn, err := dhcp.Open(name, l.Attrs().Index)
	if err != nil {
		return dhcp.Lease{}, err
	}
	defer conn.Close()
	client := dhcp.Client{Conn: conn, Hardware: l.Attrs().HardwareAddr, Rand: rand.Uint32}
	lease, err := client.Acquire(ctx)
	if err != nil && !carrier("/sys/class/net", name) {
		err = fmt.Errorf("it has no link, as if its cable were out: %w", err)
	}
	return lease, err
}

// carrier reports whether a card has a link.
func carrier(sys, name string) bool {
	b, err := os.ReadFile(filepath.Join(sys, name, "carrier"))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// apply brings a lease into force. Its address has no end: clouds give each machine
// the same one as long as it lives.
func apply(l netlink.Link, lease dhcp.Lease) error {
	if lease.MTU > 0 {
		if err := netlink.LinkSetMTU(l, lease.MTU); err != nil {
			return fmt.Errorf("set the MTU %d: %w", lease.MTU, err)
		}
	}
	a := lease.Address
	ip := net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), 32)}
	if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: &ip}); err != nil {
		return fmt.Errorf("set the address %s: %w", a, err)
	}
	for _, r := range routesOf(l.Attrs().Index, lease) {
		if err := netlink.RouteReplace(&r); err != nil {
			return fmt.Errorf("set the route %s: %w", r, err)
		}
	}
	return nil
}

// routesOf are a lease's as the kernel wants them: those on the link first, since the
// others lead over these.
func routesOf(index int, lease dhcp.Lease) []netlink.Route {
	var near, far []netlink.Route
	for _, r := range lease.Routes {
		to := net.IPNet{IP: r.To.Addr().AsSlice(), Mask: net.CIDRMask(r.To.Bits(), 32)}
		out := netlink.Route{LinkIndex: index, Dst: &to, Scope: netlink.SCOPE_LINK}
		if !r.Via.IsValid() {
			near = append(near, out)
			continue
		}
		out.Gw, out.Scope = r.Via.AsSlice(), netlink.SCOPE_UNIVERSE
		if !lease.Address.Contains(r.Via) {
			out.SetFlag(netlink.FLAG_ONLINK)
		}
		far = append(far, out)
	}
	return append(near, far...)
}

// keep renews the lease until ctx ends. Where that fails the address stays: a machine
// that gave up its own would be of no use to anybody.
func (n *network) keep(ctx context.Context) {
	for wait := n.lease.Renew; n.lease.Lifetime > 0; {
		timer := time.NewTimer(max(wait, renewRetry))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = renewRetry
		lease, err := n.renew(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			n.console.Say("renew the address %s: %v", n.lease.Address, err)
		case lease.Address != n.lease.Address:
			n.console.Say("the network wants %s to become %s, which stays as it is", n.lease.Address, lease.Address)
		default:
			wait = lease.Renew
		}
	}
}

func (n *network) renew(ctx context.Context) (dhcp.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	conn, err := dhcp.Open(n.link.Attrs().Name, n.link.Attrs().Index)
	if err != nil {
		return dhcp.Lease{}, err
	}
	defer conn.Close()
	client := dhcp.Client{Conn: conn, Hardware: n.link.Attrs().HardwareAddr, Rand: rand.Uint32}
	return client.Renew(ctx, n.lease)
}
