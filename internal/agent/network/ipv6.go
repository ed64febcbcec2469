package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// gateway6 is to IPv6 what gateway is to IPv4.
var gateway6 = netip.MustParseAddr("fe80::1")

// settings6 are what turns IPv6 on for one link, or off. A kernel without IPv6 has
// none of these, and needs none.
func settings6(on bool) []setting {
	if !on {
		// Not even a link-local address: what nobody has given the pod, nobody
		// watches either.
		return []setting{{"disable_ipv6", "1"}}
	}
	return []setting{
		{"disable_ipv6", "0"},
		// Both ends are told all there is to know. What one says of itself as a
		// router would let it draw the other's traffic to itself.
		{"accept_ra", "0"},
		{"accept_redirects", "0"},
	}
}

type setting struct{ key, value string }

// setIPv6 turns IPv6 on or off for a link of this network namespace.
func setIPv6(link string, on bool) error {
	dir := "net/ipv6/conf/" + link + "/"
	if _, err := os.Stat("/proc/sys/net/ipv6"); errors.Is(err, fs.ErrNotExist) && !on {
		return nil
	}
	for _, s := range settings6(on) {
		if err := sysctl(dir+s.key, s.value); err != nil {
			return err
		}
	}
	return nil
}

// within calls f in a network namespace, on a thread that ends with it.
func within(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// PrepareIPv6 does for IPv6 what Prepare does for IPv4.
func PrepareIPv6(podIP, nodeIP netip.Addr) error {
	uplink, err := uplinkOf(nodeIP)
	if err != nil {
		return err
	}
	name := uplink.Attrs().Name
	settings := []setting{
		{"net/ipv6/conf/all/forwarding", "1"},
		{"net/ipv6/conf/" + name + "/proxy_ndp", "1"},
		{"net/ipv6/neigh/" + name + "/proxy_delay", "0"},
	}
	// Who forwards no longer listens to routers, unless told to: the machine must
	// keep the default route that it has from one.
	const acceptRA = "/proc/sys/net/ipv6/conf/%s/accept_ra"
	if b, err := os.ReadFile(fmt.Sprintf(acceptRA, name)); err == nil && strings.TrimSpace(string(b)) == "1" {
		settings = slices.Insert(settings, 0, setting{"net/ipv6/conf/" + name + "/accept_ra", "2"})
	}
	for _, s := range settings {
		if err := sysctl(s.key, s.value); err != nil {
			return err
		}
	}
	if err := answerFor(uplink, unix.AF_INET6, podIP); err != nil {
		return err
	}
	if err := advertise(uplink, podIP, nodeIP); err != nil {
		return fmt.Errorf("announce %s on %s: %w", podIP, name, err)
	}
	return nil
}

// advertise sends all nodes on the link an unsolicited advertisement, for the same
// reason as announce.
func advertise(link netlink.Link, ip, from netip.Addr) error {
	mac := link.Attrs().HardwareAddr
	if len(mac) != 6 || link.Attrs().Flags&net.FlagMulticast == 0 {
		return nil // not an Ethernet: nobody keeps neighbours' addresses
	}
	// The kernel fills in the checksum.
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	for _, o := range []struct{ option, value int }{
		{unix.IPV6_MULTICAST_IF, link.Attrs().Index},
		{unix.IPV6_MULTICAST_HOPS, 255}, // or nobody believes it
	} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, o.option, o.value); err != nil {
			return fmt.Errorf("set up a raw socket: %w", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: from.As16()}); err != nil {
		return fmt.Errorf("send from %s: %w", from, err)
	}
	allNodes := &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(link.Attrs().Index)}
	return unix.Sendto(fd, neighbourAdvertisement(mac, ip), 0, allNodes)
}

// neighbourAdvertisement is an unsolicited one of a router, with the override flag
// and the target's link-layer address (RFC 4861, section 4.4).
func neighbourAdvertisement(mac net.HardwareAddr, ip netip.Addr) []byte {
	p := []byte{136, 0, 0, 0, 0xa0, 0, 0, 0} // type, code, checksum, router and override
	p = append(p, ip.AsSlice()...)
	p = append(p, 2, 1) // option, its length in 8 bytes
	return append(p, mac...)
}
