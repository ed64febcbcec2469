package network

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/test/journal"
)

// own returns the addresses of a device of this thread's network namespace.
func own(t *testing.T, device string, family int) (all []string) {
	t.Helper()
	link, err := netlink.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	list, err := netlink.AddrList(link, family)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() {
			all = append(all, a.IP.String())
		}
	}
	return all
}

// claim gives a device an address, as a program on the machine does.
func claim(t *testing.T, device string, ip netip.Addr, bits int) {
	t.Helper()
	link, err := netlink.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(bits, ip.BitLen())}}
	if ip.Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, address); err != nil {
		t.Fatal(err)
	}
}

// What the machine takes for its own address never reaches the pod. cloud-init gives it the address with the subnet's
// prefix, before DHCP gives it its own, amazon-ec2-net-utils with /32.
func TestTheMachineHasThePodsAddressNoMoreOncePrepared(t *testing.T) {
	for name, bits := range map[string]int{"as one more": 32, "of the subnet": 16} {
		t.Run(name, func(t *testing.T) {
			machine6(t)
			up, err := netlink.LinkByName("up")
			if err != nil {
				t.Fatal(err)
			}
			// The pod's address is the older: the kernel removes those of the same subnet with it, unless told otherwise.
			mine := &netlink.Addr{IPNet: &net.IPNet{IP: nodeIP.AsSlice(), Mask: net.CIDRMask(16, 32)}}
			if err := netlink.AddrDel(up, mine); err != nil {
				t.Fatal(err)
			}
			if err := sysctl("net/ipv4/conf/all/promote_secondaries", "0"); err != nil {
				t.Fatal(err)
			}
			claim(t, "up", podIP, bits)
			claim(t, "up", nodeIP, 16)
			claim(t, "up", podIPv6, 64)
			log := &journal.Log{}
			h := NewHost(slog.New(slog.NewTextHandler(log, nil)))
			for range 2 {
				if err := h.Prepare(podIP, nodeIP, podIPv6, nodeIPv6); err != nil {
					t.Fatal(err)
				}
			}
			if got := own(t, "up", unix.AF_INET); len(got) != 1 || got[0] != nodeIP.String() {
				t.Errorf("the machine has %v, want %s alone", got, nodeIP)
			}
			if got := own(t, "up", unix.AF_INET6); len(got) != 1 || got[0] != nodeIPv6.String() {
				t.Errorf("the machine has %v, want %s alone", got, nodeIPv6)
			}
			if n := log.Lines(); n != 2 {
				t.Errorf("%d lines of the log for two addresses: %s", n, log.String())
			}
			// What is for the pod reaches it.
			args := pod6(t, "c1")
			c, err := parse(args.StdinData)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := connect(args, c); err != nil {
				t.Fatal(err)
			}
			if device, _ := routeTo(t, podIP); device != hostVeth("c1", "eth0") {
				t.Errorf("the pod is sought through %q", device)
			}
		})
	}
}

func TestAMachineThatHasThePodsAddressByARouteIsRefused(t *testing.T) {
	machine(t)
	up, err := netlink.LinkByName("up")
	if err != nil {
		t.Fatal(err)
	}
	prefix := &net.IPNet{IP: podIP.AsSlice(), Mask: net.CIDRMask(28, 32)}
	prefix.IP = prefix.IP.Mask(prefix.Mask)
	local := &netlink.Route{
		LinkIndex: up.Attrs().Index,
		Dst:       prefix,
		Type:      unix.RTN_LOCAL,
		Table:     unix.RT_TABLE_LOCAL,
		Scope:     unix.RT_SCOPE_HOST,
	}
	if err := netlink.RouteAdd(local); err != nil {
		t.Fatal(err)
	}
	h := NewHost(slog.New(slog.DiscardHandler))
	err = h.Prepare(podIP, nodeIP, netip.Addr{}, netip.Addr{})
	if err == nil || !strings.Contains(err.Error(), podIP.String()) {
		t.Errorf("prepared with %v: want an error that names %s", err, podIP)
	}
	if err := netlink.RouteDel(local); err != nil {
		t.Fatal(err)
	}
	if err := h.Prepare(podIP, nodeIP, netip.Addr{}, netip.Addr{}); err != nil {
		t.Error(err)
	}
}

// A program that gives the machine the address again and again is told of, and the pod is reached all the same.
func TestTheMachineIsKeptFromThePodsAddress(t *testing.T) {
	machine(t)
	log := &journal.Log{}
	h := NewHost(slog.New(slog.NewTextHandler(log, nil)))
	if err := h.Prepare(podIP, nodeIP, netip.Addr{}, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- within(here, func() error { h.Keep(ctx); return nil }) }()
	defer func() {
		cancel()
		if err := <-kept; err != nil {
			t.Error(err)
		}
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	const times = 5
	for n := range times {
		claim(t, "up", podIP, 32)
		for len(own(t, "up", unix.AF_INET)) > 1 {
			if time.Now().After(deadline) {
				t.Fatalf("the machine keeps the pod's address that it was given for the %d. time", n+1)
			}
			<-tick.C
		}
	}
	// The last is told of after the address is gone, perhaps.
	for log.Lines() < 3 {
		if time.Now().After(deadline) {
			t.Fatalf("it was told of %d times: %s", log.Lines(), log.String())
		}
		<-tick.C
	}
	if n := log.Lines(); n != 3 { // the first, the second and the fourth
		t.Errorf("%d lines of the log for %d times: %s", n, times, log.String())
	}
}

// An address that comes while it is taken is not mistaken for a route that has none.
func TestAnAddressThatComesWhileItIsTakenIsTaken(t *testing.T) {
	machine(t)
	if err := NewHost(slog.New(slog.DiscardHandler)).Prepare(podIP, nodeIP, netip.Addr{}, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	up, err := netlink.LinkByName("up")
	if err != nil {
		t.Fatal(err)
	}
	given := make(chan error, 1)
	go func() {
		given <- within(here, func() error {
			address := &netlink.Addr{IPNet: &net.IPNet{IP: podIP.AsSlice(), Mask: net.CIDRMask(32, 32)}}
			for range 3000 {
				if err := netlink.AddrAdd(up, address); err != nil && !errors.Is(err, unix.EEXIST) {
					return err
				}
			}
			return nil
		})
	}()
	for {
		if _, err := disclaim(podIP); err != nil {
			t.Error(err)
		}
		select {
		case err := <-given:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}
