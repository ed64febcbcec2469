//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// linkHost is a host of the test's own on the cells' link: a network namespace with
// one address. The machine that the tests run on does not get the address.
type linkHost struct {
	ip netip.Addr
	ns netns.NsHandle
}

var linkHosts atomic.Int32

// newLinkHost puts a host on the cells' link until the test ends.
func newLinkHost(t *testing.T, ip netip.Addr) *linkHost {
	t.Helper()
	h := &linkHost{ip: ip, ns: netns.None()}
	if err := inNamespace(func() (err error) {
		h.ns, err = netns.New() // and the thread is in it
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.ns.Close(); err != nil {
			t.Error(err)
		}
	})
	name := fmt.Sprintf("%s-h%d", strings.TrimPrefix(bridge, "kip"), linkHosts.Add(1))
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = name, link.Attrs().Index
	cable := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(h.ns)}
	if err := netlink.LinkAdd(cable); err != nil {
		t.Fatalf("connect a host to %s: %v", bridge, err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(cable); err != nil {
			t.Error(err)
		}
	})
	if err := netlink.LinkSetUp(cable); err != nil {
		t.Fatal(err)
	}
	route(t, h.ns, func(there *netlink.Handle, eth0 netlink.Link) error {
		addr, err := netlink.ParseAddr(ip.String() + "/32")
		if err != nil {
			return err
		}
		_, cells, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		if err := errors.Join(there.AddrAdd(eth0, addr), there.LinkSetUp(eth0)); err != nil {
			return err
		}
		return there.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: cells, Scope: unix.RT_SCOPE_LINK})
	})
	return h
}

// route does something with the eth0 of a network namespace.
func route(t *testing.T, ns netns.NsHandle, do func(there *netlink.Handle, eth0 netlink.Link) error) {
	t.Helper()
	there, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	eth0, err := there.LinkByName("eth0")
	if err == nil {
		err = do(there, eth0)
	}
	if err != nil {
		t.Fatalf("set up eth0 of a network namespace: %v", err)
	}
}

// neighbourOf lets a pod's machine find the host on its link, as instances of clouds
// find their metadata service.
func (h *linkHost) neighbourOf(s *space, pods ...string) {
	s.Helper()
	for _, pod := range pods {
		ns, err := netns.GetFromPath(s.machine(pod).netns())
		if err != nil {
			s.Fatal(err)
		}
		defer ns.Close()
		route(s.T, ns, func(there *netlink.Handle, eth0 netlink.Link) error {
			only := &net.IPNet{IP: h.ip.AsSlice(), Mask: net.CIDRMask(h.ip.BitLen(), h.ip.BitLen())}
			return there.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: only, Scope: unix.RT_SCOPE_LINK})
		})
	}
}

// listen calls f, which opens sockets, on the host.
func (h *linkHost) listen(t *testing.T, f func() error) {
	t.Helper()
	if err := inNamespace(func() error {
		if err := netns.Set(h.ns); err != nil {
			return err
		}
		return f()
	}); err != nil {
		t.Fatal(err)
	}
}

// inNamespace calls f, which moves its thread into another network namespace, and
// moves it back. See dialHere for why the thread is not left to die there.
func inNamespace(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		err = f()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			done <- errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
			return // locked: nobody else may use this thread
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}
