package firewall

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agentapi"
)

const (
	podIPv6     = "fd00:9:80::2"
	forgedIPv6  = "fd00:9:80::99" // the pod has it, too
	cellIPv6    = "fd00:9::2"
	outsideIPv6 = "fd00:9::1"
	otherIPv6   = "fd00:9::77"

	podLinkLocal  = "fe80::80:2"
	cellLinkLocal = "fe80::80:1"
)

// withIPv6 gives the three IPv6 addresses, by which everybody can reach everybody
// as long as no firewall is in the way.
func (n *net3) withIPv6() {
	n.Helper()
	address := func(link netlink.Link, all ...string) error {
		for _, a := range all {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		return nil
	}
	route := func(link netlink.Link, dst, via string) error {
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(via)}
		var err error
		if r.Dst, err = netlink.ParseIPNet(dst); err != nil {
			return err
		}
		return netlink.RouteAdd(r)
	}
	on := func(name string, f func(netlink.Link) error) func() error {
		return func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return f(l)
		}
	}
	n.in(n.cell, on("pod0", func(l netlink.Link) error {
		return errors.Join(sysctls("net.ipv6.conf.all.forwarding=1"), address(l, cellLinkLocal+"/64"),
			route(l, podIPv6+"/128", ""), route(l, forgedIPv6+"/128", ""))
	}))
	n.in(n.pod, on("eth0", func(l netlink.Link) error {
		return errors.Join(address(l, podLinkLocal+"/64", podIPv6+"/128", forgedIPv6+"/128"), route(l, "::/0", cellLinkLocal))
	}))
	n.in(n.outside, on("eth0", func(l netlink.Link) error {
		return errors.Join(address(l, otherIPv6+"/64"), route(l, "fd00:9:80::/64", cellIPv6))
	}))
}

// podLink is the number of the pod's interface: names are looked up, and kept, in
// whatever namespace somebody happens to be.
func (n *net3) podLink() (index string) {
	n.Helper()
	n.in(n.pod, func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			index = strconv.Itoa(l.Attrs().Index)
		}
		return err
	})
	return index
}

// A pod that has no IPv6 address from its cell has nevertheless a link-local one,
// unless its interface is without IPv6; and with NET_ADMIN it gives itself others.
func TestAPodWithoutAnIPv6AddressHasNoWayByIPv6(t *testing.T) {
	n := newNet3(t)
	n.withIPv6()
	for _, ns := range []netns.NsHandle{n.pod, n.cell, n.outside} {
		n.listen(ns, "[::]:80")
	}
	f := n.firewall()
	all := []attempt{
		{"in", n.outside, "", "[" + podIPv6 + "]:80"},
		{"out", n.pod, "", "[" + outsideIPv6 + "]:80"},
		{"the pod to the cell", n.pod, podIPv6, "[" + cellIPv6 + "]:80"},
		{"the pod to the cell by link-local addresses", n.pod, "", "[" + cellLinkLocal + "%" + n.podLink() + "]:80"},
		{"the pod to the metadata service", n.pod, "", "[fd00:ec2::254]:80"},
	}
	n.in(n.outside, func() error { return errors.Join(sysctls("net.ipv6.conf.all.forwarding=1")) })
	n.expect("no firewall, so that what is refused below is refused by it", all, all...)
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.expect("closed", all)
	n.apply(f, func(*agentapi.Firewall) {})
	n.expect("no policy", all)
	n.apply(f, func(fw *agentapi.Firewall) {
		everybody := []agentapi.Allowed{{Any: true, AnyPort: true}}
		fw.Ingress, fw.Egress = agentapi.Direction{Isolated: true, Allowed: everybody}, agentapi.Direction{Isolated: true, Allowed: everybody}
		fw.AllowMetadata = true
	})
	n.expect("everything allowed", all)
}

func TestThePodsIPv6PacketsPassAsTheRulesSay(t *testing.T) {
	n := newNet3(t)
	n.withIPv6()
	n.listen(n.pod, "[::]:80")
	n.listen(n.pod, "[::]:81")
	n.listen(n.cell, "[::]:6421")
	n.listen(n.outside, "[::]:80")
	n.listen(n.outside, "[::]:53")
	f := n.firewall()
	in80 := attempt{"in to port 80", n.outside, outsideIPv6, "[" + podIPv6 + "]:80"}
	in81 := attempt{"in to port 81", n.outside, outsideIPv6, "[" + podIPv6 + "]:81"}
	other80 := attempt{"another in to port 80", n.outside, otherIPv6, "[" + podIPv6 + "]:80"}
	inForged := attempt{"in to an address that the pod gave itself", n.outside, outsideIPv6, "[" + forgedIPv6 + "]:80"}
	out80 := attempt{"out to port 80", n.pod, podIPv6, "[" + outsideIPv6 + "]:80"}
	outOther := attempt{"out to another", n.pod, podIPv6, "[" + otherIPv6 + "]:80"}
	probe := attempt{"the kubelet's probe", n.cell, "", "[" + podIPv6 + "]:80"}
	spoof := attempt{"a forged source", n.pod, forgedIPv6, "[" + outsideIPv6 + "]:80"}
	agentPort := attempt{"the pod to the agent", n.pod, podIPv6, "[" + cellIPv6 + "]:6421"}
	spoofAgent := attempt{"the pod to the agent from a forged source", n.pod, forgedIPv6, "[" + cellIPv6 + "]:6421"}
	linkLocal := attempt{"the pod to the agent by link-local addresses", n.pod, "", "[" + cellLinkLocal + "%" + n.podLink() + "]:6421"}
	neighbour := attempt{"a neighbour to the agent", n.outside, "", "[" + cellIPv6 + "]:6421"}
	metadata := attempt{"the pod to the metadata service", n.pod, podIPv6, "[fd00:ec2::254]:80"}
	names := attempt{"the pod to the resolver at that address", n.pod, podIPv6, "[fd00:ec2::254]:53"}
	all := []attempt{in80, in81, other80, inForged, out80, outOther, probe, spoof, agentPort, spoofAgent, linkLocal, neighbour, metadata,
		names}
	apply := func(change func(*agentapi.Firewall)) {
		n.apply(f, func(fw *agentapi.Firewall) { fw.PodIPv6 = netip.MustParseAddr(podIPv6); change(fw) })
	}

	n.expect("no firewall, so that what is refused below is refused by it", all, all...)
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.expect("closed", all, neighbour)
	apply(func(*agentapi.Firewall) {})
	open := []attempt{in80, in81, other80, out80, outOther, probe, neighbour, names}
	n.expect("no policy", all, open...)
	apply(func(fw *agentapi.Firewall) { fw.AllowMetadata = true })
	n.expect("metadata allowed", all, append(open, metadata)...)
	apply(func(fw *agentapi.Firewall) { fw.Ingress.Isolated = true })
	n.expect("ingress denied", all, out80, outOther, probe, neighbour, names)
	apply(func(fw *agentapi.Firewall) { fw.Egress.Isolated = true })
	n.expect("egress denied", all, in80, in81, other80, probe, neighbour)
	tcp := []agentapi.Ports{span("TCP", 79, 80)}
	apply(func(fw *agentapi.Firewall) {
		fw.Ingress = agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{{Addresses: prefixes("10.0.0.0/8", outsideIPv6+"/128"),
			Ports: tcp}}}
		fw.Egress = agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{{Addresses: prefixes("fd00:9::70/124"), AnyPort: true}}}
	})
	n.expect("some allowed", all, in80, outOther, probe, neighbour)
	apply(func(fw *agentapi.Firewall) {
		everybody := []agentapi.Allowed{{Addresses: prefixes("0.0.0.0/0"), AnyPort: true}}
		fw.Ingress, fw.Egress = agentapi.Direction{Isolated: true, Allowed: everybody}, agentapi.Direction{Isolated: true, Allowed: everybody}
	})
	n.expect("every IPv4 network allowed", all, probe, neighbour)
}

// Who believes a router's advertisement sends its own traffic there.
func TestAPodIsNoRouterToItsCell(t *testing.T) {
	for _, ipv6 := range []string{"", podIPv6} {
		n := newNet3(t)
		n.withIPv6()
		// As a cell without IPv6 is, so that it listens to routers.
		n.in(n.cell, func() error {
			return sysctls("net.ipv6.conf.all.forwarding=0", "net.ipv6.conf.pod0.forwarding=0", "net.ipv6.conf.pod0.accept_ra=1")
		})
		f := n.firewall()
		n.apply(f, func(fw *agentapi.Firewall) {
			if ipv6 != "" {
				fw.PodIPv6 = netip.MustParseAddr(ipv6)
			}
		})
		n.advertiseRouter()
		// What comes after it on the same wire has been answered: so it was seen.
		if _, err := n.dial(n.pod, "", cellIP+":6421", patience); !errors.Is(err, unix.EHOSTUNREACH) {
			t.Fatalf("the cell does not refuse the pod: %v", err)
		}
		if n.routed() {
			t.Errorf("pod with IPv6 address %q: the cell sends its traffic by way of the pod", ipv6)
		}
		// Without the firewall it would.
		if out, err := f.nft(t.Context(), "delete", "table", "inet", "kip"); err != nil {
			t.Fatal(err, out)
		}
		deadline := time.Now().Add(patience)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ; !n.routed(); <-tick.C {
			if time.Now().After(deadline) {
				t.Fatal("not even without a firewall does the cell listen to the pod: this test shows nothing")
			}
			n.advertiseRouter()
		}
	}
}

// advertiseRouter lets the pod say that it is a router.
func (n *net3) advertiseRouter() {
	n.Helper()
	n.in(n.pod, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		index := eth0.Attrs().Index
		linkLocal, allNodes := netip.MustParseAddr(podLinkLocal).As16(), netip.MustParseAddr("ff02::1").As16()
		// Type, code, checksum, hop limit, flags, half an hour, and two times that are left open.
		advertisement := []byte{134, 0, 0, 0, 64, 0, 1800 >> 8, 1800 & 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.Bind(fd, &unix.SockaddrInet6{Addr: linkLocal, ZoneId: uint32(index)}),
			unix.Sendto(fd, advertisement, 0, &unix.SockaddrInet6{Addr: allNodes, ZoneId: uint32(index)}),
		)
	})
}

// routed says whether the cell has a default route for IPv6.
func (n *net3) routed() (found bool) {
	n.Helper()
	n.in(n.cell, func() error {
		routes, err := netlink.RouteList(nil, unix.AF_INET6)
		for _, r := range routes {
			ones := 0
			if r.Dst != nil {
				ones, _ = r.Dst.Mask.Size()
			}
			found = found || ones == 0
		}
		return err
	})
	return found
}
