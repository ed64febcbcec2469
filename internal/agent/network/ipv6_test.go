package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	nodeIPv6 = netip.MustParseAddr("fd00:119::2")
	podIPv6  = netip.MustParseAddr("fd00:119::8002")
)

// machine6 is a machine that has an IPv6 address, too.
func machine6(t *testing.T) {
	t.Helper()
	machine(t)
	up, err := netlink.LinkByName("up")
	if err != nil {
		t.Fatal(err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: nodeIPv6.AsSlice(), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
	if err := netlink.AddrAdd(up, address); err != nil {
		t.Fatal(err)
	}
}

func pod6(t *testing.T, container string) *skel.CmdArgs {
	t.Helper()
	args := pod(t, container)
	args.StdinData = fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"kip","type":"itzo-cni","podIP":%q,"nodeIP":%q,"podIPv6":%q,"nodeIPv6":%q}`,
		podIP, nodeIP, podIPv6, nodeIPv6)
	return args
}

// addresses6 are the IPv6 addresses of a pod's interface.
func addresses6(t *testing.T, args *skel.CmdArgs) (all []string) {
	t.Helper()
	there, err := netns.GetFromPath(args.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	h, err := netlink.NewHandleAt(there, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	list, err := h.AddrList(eth0, unix.AF_INET6)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		all = append(all, a.IPNet.String())
	}
	return all
}

func TestAPodWithoutAnIPv6AddressHasNoIPv6OnEitherEnd(t *testing.T) {
	machine6(t)
	args := pod(t, "c1")
	c, err := parse(args.StdinData)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := connect(args, c); err != nil {
		t.Fatal(err)
	}
	if all := addresses6(t, args); len(all) > 0 {
		t.Errorf("the pod has %v", all)
	}
	outer, err := netlink.LinkByName(hostVeth("c1", "eth0"))
	if err != nil {
		t.Fatal(err)
	}
	if all, err := netlink.AddrList(outer, unix.AF_INET6); err != nil || len(all) > 0 {
		t.Errorf("the cell's end has %v, %v", all, err)
	}
}

func TestAPodWithAnIPv6AddressIsReachedByItToo(t *testing.T) {
	machine6(t)
	if err := PrepareIPv6(podIPv6, nodeIPv6); err != nil {
		t.Fatal(err)
	}
	args := pod6(t, "c1")
	c, err := parse(args.StdinData)
	if err != nil {
		t.Fatal(err)
	}
	result, err := connect(args, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.IPs) != 2 || result.IPs[0].Address.String() != podIP.String()+"/32" ||
		result.IPs[1].Address.String() != podIPv6.String()+"/128" || len(result.Routes) != 2 {
		t.Errorf("result %+v", result)
	}
	if device, src := routeTo(t, podIPv6); device != hostVeth("c1", "eth0") || !src.Equal(nodeIPv6.AsSlice()) {
		t.Errorf("the pod is reached through %q from %s", device, src)
	}
	if err := check(args); err != nil {
		t.Error(err)
	}
	// The pod answers, over both: to the cell, which is its gateway.
	there, err := netns.GetFromPath(args.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	var lis net.Listener
	err = within(there, func() (err error) {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil { // containerd's part
			return err
		}
		lis, err = net.Listen("tcp", "[::]:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	for _, ip := range []netip.Addr{podIP, podIPv6} {
		conn, err := net.Dial("tcp", netip.AddrPortFrom(ip, 80).String())
		if err != nil {
			t.Error(err)
			continue
		}
		conn.Close()
	}
	var back net.Conn
	cell, err := net.Listen("tcp", netip.AddrPortFrom(nodeIPv6, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer cell.Close()
	if err := within(there, func() (err error) { back, err = net.Dial("tcp", cell.Addr().String()); return err }); err != nil {
		t.Fatal(err)
	}
	if from := back.LocalAddr().(*net.TCPAddr).AddrPort().Addr(); from != podIPv6 {
		t.Errorf("the pod sends from %s", from)
	}
	back.Close()
	if err := del(args); err != nil {
		t.Fatal(err)
	}
	if device, _ := routeTo(t, podIPv6); device != "up" {
		t.Errorf("the pod's address is still sought through %q", device)
	}
}

func TestANeighbourFindsThePodsIPv6AddressAtItsMachine(t *testing.T) {
	machine6(t)
	earlier := netip.MustParseAddr("fd00:119::8009")
	for _, ip := range []netip.Addr{earlier, podIPv6, podIPv6} {
		if err := PrepareIPv6(ip, nodeIPv6); err != nil {
			t.Fatal(err)
		}
	}
	prepared(t, unix.AF_INET6, podIPv6, map[string]string{
		// It listened to routers before it became one.
		"ipv6/conf/all/forwarding": "1", "ipv6/conf/up/proxy_ndp": "1", "ipv6/conf/up/accept_ra": "2", "ipv6/neigh/up/proxy_delay": "0",
	})
	args := pod6(t, "c1")
	c, err := parse(args.StdinData)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := connect(args, c); err != nil {
		t.Fatal(err)
	}
	there, err := netns.GetFromPath(args.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	var lis net.Listener
	if err := within(there, func() (err error) {
		lis, err = net.Listen("tcp",
			netip.AddrPortFrom(podIPv6, 80).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	// A neighbour, at the other end of the machine's cable.
	neighbour, err := netns.GetFromPath(pod(t, "neighbour").Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer neighbour.Close()
	peer, err := netlink.LinkByName("peer")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsFd(peer, int(neighbour)); err != nil {
		t.Fatal(err)
	}
	err = within(neighbour, func() error {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fd00:119::1"), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
		if err := errors.Join(netlink.AddrAdd(peer, address), netlink.LinkSetUp(peer)); err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(podIPv6, 80).String(), patience)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

func TestTheAdvertisementNamesTheAddressAndOverridesOthers(t *testing.T) {
	got := neighbourAdvertisement(net.HardwareAddr{2, 3, 4, 5, 6, 7}, podIPv6)
	want := append([]byte{136, 0, 0, 0, 0xa0, 0, 0, 0}, podIPv6.AsSlice()...)
	want = append(want, 2, 1, 2, 3, 4, 5, 6, 7)
	if !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
}
