package network

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

var (
	nodeIP = netip.MustParseAddr("10.119.0.2")
	podIP  = netip.MustParseAddr("10.119.128.2")
)

func TestTheAnnouncementIsARequestForOnesOwnAddress(t *testing.T) {
	got := gratuitousARP(net.HardwareAddr{2, 3, 4, 5, 6, 7}, netip.MustParseAddr("10.1.2.3"))
	want := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 3, 4, 5, 6, 7, 10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 10, 1, 2, 3}
	if !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
}

func TestAVethIsNamedAfterItsContainerAndInterface(t *testing.T) {
	names := map[string]bool{}
	for _, id := range []string{"a", "b", strings.Repeat("f", 64)} {
		for _, ifName := range []string{"eth0", "net1"} {
			n := hostVeth(id, ifName)
			if len(n) > 15 || n != hostVeth(id, ifName) {
				t.Errorf("%q is no name for a device, or another one each time", n)
			}
			names[n] = true
		}
	}
	if len(names) != 6 {
		t.Errorf("%d names for 6 interfaces", len(names))
	}
}

func TestABadNetworkConfigurationIsRefused(t *testing.T) {
	for _, stdin := range []string{``, `{`, `{}`, `{"podIP":"10.0.0.1"}`, `{"podIP":"fd00::1","nodeIP":"10.0.0.1"}`,
		`{"podIP":"x","nodeIP":"10.0.0.1"}`,
		`{"podIP":"10.0.0.2","nodeIP":"10.0.0.1","behind":["10.20.0.0"]}`,
		`{"podIP":"10.0.0.2","nodeIP":"10.0.0.1","behind":["fd00::/64"]}`,
		`{"podIP":"10.0.0.2","nodeIP":"10.0.0.1","behind":["10.0.0.0/24"]}`,
		`{"podIP":"10.0.0.2","nodeIP":"10.0.0.1","podIPv6":"fd00::2"}`,
		`{"podIP":"10.0.0.2","nodeIP":"10.0.0.1","podIPv6":"10.0.0.3","nodeIPv6":"fd00::2"}`} {
		if _, err := parse([]byte(stdin)); err == nil {
			t.Errorf("%q was taken", stdin)
		}
	}
}

// machine makes the calling test's thread a machine: a network namespace with an
// uplink that has nodeIP.
func machine(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	here, err := netns.New()
	if err != nil {
		runtime.UnlockOSThread()
		t.Skipf("no network namespaces here: %v", err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Fatal(err) // the thread stays locked, and ends with the test
		}
		before.Close()
		here.Close()
		runtime.UnlockOSThread()
	})
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "up", 1400
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"up", "peer"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
		if name == "up" {
			if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: nodeIP.AsSlice(), Mask: net.CIDRMask(16, 32)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// pod makes a network namespace and returns arguments of the plugin for it.
func pod(t *testing.T, container string) *skel.CmdArgs {
	t.Helper()
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(here); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { there.Close() })
	return &skel.CmdArgs{
		ContainerID: container, IfName: "eth0", Netns: fmt.Sprintf("/proc/self/fd/%d", int(there)),
		StdinData: fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"kip","type":"itzo-cni","podIP":%q,"nodeIP":%q}`, podIP, nodeIP),
	}
}

func routeTo(t *testing.T, ip netip.Addr) (device string, src net.IP) {
	t.Helper()
	routes, err := netlink.RouteGet(ip.AsSlice())
	if err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().Name, routes[0].Src
}

func TestThePodIsReachedByItsOneAddressAndTheCellIsItsGateway(t *testing.T) {
	machine(t)
	if err := Prepare(podIP, nodeIP); err != nil {
		t.Fatal(err)
	}
	args := pod(t, "c1")
	c, err := parse(args.StdinData)
	if err != nil {
		t.Fatal(err)
	}
	result, err := connect(args, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.IPs) != 1 || result.IPs[0].Address.String() != podIP.String()+"/32" {
		t.Errorf("result %+v", result)
	}
	if device, src := routeTo(t, podIP); device != hostVeth("c1", "eth0") || !src.Equal(nodeIP.AsSlice()) {
		t.Errorf("the pod is reached through %q from %s", device, src)
	}
	if err := check(args); err != nil {
		t.Error(err)
	}
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
	if err != nil || eth0.Attrs().MTU != 1400 {
		t.Fatalf("the pod's interface: %v, %v", eth0, err)
	}
	routes, err := h.RouteGet(net.IPv4(192, 0, 2, 1))
	if err != nil || !routes[0].Gw.Equal(gateway.AsSlice()) || !routes[0].Src.Equal(podIP.AsSlice()) {
		t.Errorf("the pod's way out: %v, %v", routes, err)
	}

	if err := del(args); err != nil {
		t.Fatal(err)
	}
	if device, _ := routeTo(t, podIP); device != "up" {
		t.Errorf("the pod's address is still sought through %q", device)
	}
	if check(args) == nil {
		t.Error("check finds a network that is gone")
	}
	if err := del(args); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// assignment returns how a device of a network namespace has got its hardware address, in the words of the kernel
// that udev reads: 1 is at random, 3 was set (include/uapi/linux/netdevice.h, NET_ADDR_RANDOM and NET_ADDR_SET).
func assignment(t *testing.T, ns netns.NsHandle, device string) string {
	t.Helper()
	dir := t.TempDir()
	var text []byte
	err := within(ns, func() (err error) { // on a thread that ends, and its mounts with it
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount("sysfs", dir, "sysfs", 0, ""); err != nil {
			return fmt.Errorf("mount sysfs: %w", err)
		}
		text, err = os.ReadFile(filepath.Join(dir, "class/net", device, "addr_assign_type"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestNoHardwareAddressOfAVethIsLeftToUdev(t *testing.T) {
	machine(t)
	args := pod(t, "c1")
	c, err := parse(args.StdinData)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := connect(args, c); err != nil {
		t.Fatal(err)
	}
	cell, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer cell.Close()
	inPod, err := netns.GetFromPath(args.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer inPod.Close()
	const set = "3"
	if got := assignment(t, cell, hostVeth("c1", "eth0")); got != set {
		t.Errorf("the address of the cell's end is of type %s, want %s: udev would change it", got, set)
	}
	if got := assignment(t, inPod, "eth0"); got != set {
		t.Errorf("the address of the pod's end is of type %s, want %s: udev would change it", got, set)
	}
}

func TestThePodIsTheWayToTheNetworksBehindIt(t *testing.T) {
	machine(t)
	behind := netip.MustParsePrefix("10.20.0.0/16")
	old, next := pod(t, "old"), pod(t, "next")
	c, err := parse(old.StdinData)
	if err != nil {
		t.Fatal(err)
	}
	c.Behind = []netip.Prefix{behind}
	there := netip.MustParseAddr("10.20.3.4")
	for container, args := range map[string]*skel.CmdArgs{"old": old, "next": next} {
		if _, err := connect(args, c); err != nil {
			t.Fatal(err)
		}
		if device, _ := routeTo(t, there); device != hostVeth(container, "eth0") {
			t.Errorf("the network behind pod %s is reached through %q", container, device)
		}
		routes, err := netlink.RouteGet(there.AsSlice())
		if err != nil || !routes[0].Gw.Equal(podIP.AsSlice()) {
			t.Errorf("by way of %v, %v: want the pod", routes, err)
		}
	}
	for _, args := range []*skel.CmdArgs{old, next} {
		if err := del(args); err != nil {
			t.Fatal(err)
		}
	}
	if routes, err := netlink.RouteGet(there.AsSlice()); err == nil && routes[0].Gw.Equal(podIP.AsSlice()) {
		t.Errorf("the route of a pod that is gone is left: %v", routes)
	}
}

func TestDeletingAnOldSandboxLeavesTheNextOnesNetwork(t *testing.T) {
	machine(t)
	old, next := pod(t, "old"), pod(t, "next")
	c, err := parse(old.StdinData)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []*skel.CmdArgs{old, next} {
		if _, err := connect(args, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := del(old); err != nil {
		t.Fatal(err)
	}
	if err := check(next); err != nil {
		t.Error(err)
	}
}

func TestAnAddThatWasCutShortIsRepeated(t *testing.T) {
	machine(t)
	first, again := pod(t, "c1"), pod(t, "c1") // the kubelet makes a new namespace
	c, err := parse(first.StdinData)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []*skel.CmdArgs{first, again} {
		if _, err := connect(args, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := check(again); err != nil {
		t.Error(err)
	}
}

func TestPreparingAnswersForThePodAndNoLongerForAnEarlierOne(t *testing.T) {
	machine(t)
	earlier := netip.MustParseAddr("10.119.128.9")
	for _, ip := range []netip.Addr{earlier, podIP, podIP} {
		if err := Prepare(ip, nodeIP); err != nil {
			t.Fatal(err)
		}
	}
	prepared(t, unix.AF_INET, podIP, map[string]string{"ipv4/ip_forward": "1", "ipv4/neigh/up/proxy_delay": "0"})
}

// prepared fails the test unless the machine answers for this address alone, and has these settings.
func prepared(t *testing.T, family int, ip netip.Addr, settings map[string]string) {
	t.Helper()
	up, err := netlink.LinkByName("up")
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := netlink.NeighProxyList(up.Attrs().Index, family)
	if err != nil || len(proxies) != 1 || !proxies[0].IP.Equal(ip.AsSlice()) {
		t.Errorf("answers for %v, %v", proxies, err)
	}
	for key, want := range settings {
		if b, err := os.ReadFile("/proc/sys/net/" + key); err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s is %q, %v", key, b, err)
		}
	}
}

func TestThePodIsStillAnsweredForAfterTheLinkWasDown(t *testing.T) {
	machine(t)
	if err := Prepare(podIP, nodeIP); err != nil {
		t.Fatal(err)
	}
	peer, err := netlink.LinkByName("peer")
	if err != nil {
		t.Fatal(err)
	}
	up, err := netlink.LinkByName("up")
	if err != nil {
		t.Fatal(err)
	}
	// The kernel deals with a lost carrier in its own time, in order.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for step, set := range []func(netlink.Link) error{netlink.LinkSetUp, netlink.LinkSetDown, netlink.LinkSetUp} {
		if err := set(peer); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(patience)
		for {
			link, err := netlink.LinkByName("up")
			if err != nil {
				t.Fatal(err)
			}
			if (link.Attrs().OperState == netlink.OperUp) == (step != 1) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the uplink stays %s", link.Attrs().OperState)
			}
			<-tick.C
		}
	}
	proxies, err := netlink.NeighProxyList(up.Attrs().Index, unix.AF_INET)
	if err != nil || len(proxies) != 1 || !proxies[0].IP.Equal(podIP.AsSlice()) {
		t.Errorf("answers for %v, %v", proxies, err)
	}
}

func TestAnAddressThatTheMachineHasNotIsNamed(t *testing.T) {
	machine(t)
	err := Prepare(podIP, netip.MustParseAddr("10.119.0.77"))
	if err == nil || !strings.Contains(err.Error(), "10.119.0.77") || !strings.Contains(err.Error(), nodeIP.String()) {
		t.Errorf("error %v", err)
	}
}
