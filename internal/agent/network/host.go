package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/netdump"
)

// Host is the network of the machine that a pod is on. Its methods are for concurrent use.
//
// A cloud tells a machine the pod's address as one of its own, and programs on it give it to the machine: cloud-init's
// EC2 source, amazon-ec2-net-utils, cloud-netconfig, Google's guest agent. The kernel then keeps what is for the pod,
// and drops what the pod sends as from itself.
type Host struct {
	log *slog.Logger

	mu    sync.Mutex
	pod   []netip.Addr // addresses of the pod; none before Prepare
	again int          // how often one was taken from the machine since
}

// NewHost returns the network of this machine.
func NewHost(log *slog.Logger) *Host { return &Host{log: log} }

// Prepare makes the machine answer for the pod's addresses and forward to them, and takes them from the machine
// itself if it has them. The addresses of IPv6 are valid, or neither is. It is idempotent.
func (h *Host) Prepare(podIP, nodeIP, podIPv6, nodeIPv6 netip.Addr) error {
	pod := []netip.Addr{podIP}
	if podIPv6.IsValid() {
		pod = append(pod, podIPv6)
	}
	h.mu.Lock()
	h.pod, h.again = pod, 0
	h.mu.Unlock()
	for _, ip := range pod {
		from, err := disclaim(ip)
		if len(from) > 0 {
			h.log.Warn("the machine had the pod's address, which Kip took from it", "address", ip, "devices", from, "suspects", suspects)
		}
		if err != nil {
			return err
		}
	}
	if err := Prepare(podIP, nodeIP); err != nil || !podIPv6.IsValid() {
		return err
	}
	return PrepareIPv6(podIPv6, nodeIPv6)
}

// suspects give a machine the secondary addresses of its interface, and some do so again each minute.
var suspects = []string{"cloud-init (apply_full_imds_network_config)", "amazon-ec2-net-utils", "cloud-netconfig", "google-guest-agent"}

// keepRetry is how long Keep waits after a failure.
const keepRetry = time.Second

// Keep takes the pod's addresses from the machine as soon as something gives them to it, until ctx ends.
func (h *Host) Keep(ctx context.Context) {
	for {
		err := h.keep(ctx)
		if ctx.Err() != nil {
			return
		}
		h.log.Error("watch the machine's addresses, retrying", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(keepRetry):
		}
	}
}

func (h *Host) keep(ctx context.Context) error {
	changes, done := make(chan netlink.AddrUpdate), make(chan struct{})
	if err := netlink.AddrSubscribe(changes, done); err != nil {
		return fmt.Errorf("subscribe to changes of addresses: %w", err)
	}
	defer func() {
		close(done)
		for range changes { // whoever sends them waits until they are taken
		}
	}()
	h.mu.Lock()
	pod := h.pod
	h.mu.Unlock()
	for _, ip := range pod { // which may have come before
		h.takeAgain(ip)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case change, ok := <-changes:
			if !ok {
				return errors.New("the kernel tells no more of addresses")
			}
			ip, _ := netip.AddrFromSlice(change.LinkAddress.IP)
			if change.NewAddr && h.isPods(ip.Unmap()) {
				h.takeAgain(ip.Unmap())
			}
		}
	}
}

func (h *Host) isPods(ip netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.pod, ip)
}

// takeAgain takes an address from the machine, and tells of it: the first time, the second, the fourth and so on,
// since what gives it to the machine may do so each minute.
func (h *Host) takeAgain(ip netip.Addr) {
	from, err := disclaim(ip)
	if err != nil {
		h.log.Error("the machine has the pod's address, and the pod is cut off", "err", err, "suspects", suspects)
		return
	}
	if len(from) == 0 {
		return
	}
	h.mu.Lock()
	h.again++
	times := h.again
	h.mu.Unlock()
	if times&(times-1) == 0 {
		h.log.Error("something on this machine gives it the pod's address; Kip takes it back each time, and the pod is cut off in between",
			"address", ip, "devices", from, "times", times, "suspects", suspects)
	}
}

// disclaim takes an address from the machine itself, and returns the devices that had it. It returns an error if the
// machine still takes what is for the address as its own, but not for an address that it was given in the meantime:
// Keep hears of that.
func disclaim(ip netip.Addr) (from []string, err error) {
	held, err := holders(ip)
	if err != nil {
		return nil, err
	}
	for _, a := range held {
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return from, fmt.Errorf("look up the device that has the pod's address %s: %w", ip, err)
		}
		name := link.Attrs().Name
		if ip.Is4() {
			// Or, if the machine's own address came second in the same subnet, it would go with this one.
			if err := sysctl("net/ipv4/conf/"+name+"/promote_secondaries", "1"); err != nil {
				return from, err
			}
		}
		if err := netlink.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return from, fmt.Errorf("take the pod's address %s from %s: %w", ip, name, err)
		}
		from = append(from, name)
	}
	if !isLocal(ip) {
		return from, nil
	}
	// The kernel lists an address before it makes its route (inet_insert_ifa).
	if held, err = holders(ip); err != nil || len(held) > 0 {
		return from, err
	}
	return from, fmt.Errorf("the pod's address %s is local to the machine by a route (ip route show table local): "+
		"remove what makes that route, such as cloud-netconfig or google-guest-agent", ip)
}

// holders lists the devices that have an address.
func holders(ip netip.Addr) ([]netlink.Addr, error) {
	all, err := netdump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, family(ip)) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return slices.DeleteFunc(all, func(a netlink.Addr) bool {
		own, _ := netip.AddrFromSlice(a.IP)
		return own.Unmap() != ip
	}), nil
}

// isLocal reports whether the machine takes what is for an address as its own. Such a route needs no address: some
// programs make routes for whole prefixes.
func isLocal(ip netip.Addr) bool {
	routes, err := netlink.RouteGet(ip.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}
