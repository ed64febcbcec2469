package firewall

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/elotl/kip/internal/agentapi"
)

// Two hosts of the internet, and one to which a route of the cell's network leads; of RFC 5737.
const webIP, otherWebIP, partnerIP = "198.51.100.7", "198.51.100.8", "203.0.113.9"

// newInternet is three namespaces, of which the outside one also has hosts that are far away.
func newInternet(t *testing.T) *net3 {
	t.Helper()
	n := newNet3(t)
	n.in(n.outside, func() error {
		l, err := netlink.LinkByName("lo")
		for _, a := range []string{webIP, otherWebIP, partnerIP} {
			var addr *netlink.Addr
			if err == nil {
				addr, err = netlink.ParseAddr(a + "/32")
			}
			if err == nil {
				err = netlink.AddrAdd(l, addr)
			}
		}
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		return err
	})
	n.in(n.cell, func() error {
		l, err := netlink.LinkByName("up")
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(outsideIP)})
		}
		return err
	})
	for _, ns := range []netns.NsHandle{n.outside, n.pod} {
		n.tellSources(ns, ":8080")
	}
	return n
}

// tellSources answers each byte of a connection with the address that the connection comes from.
func (n *net3) tellSources(ns netns.NsHandle, address string) {
	n.Helper()
	n.in(ns, func() error {
		l, err := net.Listen("tcp4", address)
		if err != nil {
			return err
		}
		var telling sync.WaitGroup
		ended, end := context.WithCancel(context.Background())
		n.Cleanup(func() { l.Close(); end(); telling.Wait() })
		telling.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				stop := context.AfterFunc(ended, func() { c.Close() })
				telling.Go(func() {
					defer stop()
					defer c.Close()
					from, err := netip.ParseAddrPort(c.RemoteAddr().String())
					for one := make([]byte, 1); err == nil; {
						if _, err = io.ReadFull(c, one); err == nil {
							_, err = c.Write(from.Addr().AsSlice())
						}
					}
				})
			}
		})
		return nil
	})
}

// source asks a connection where it comes from.
func source(c net.Conn, within time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	var from [net.IPv4len]byte
	_, err := c.Write([]byte{0})
	if err == nil {
		_, err = io.ReadFull(c, from[:])
	}
	return netip.AddrFrom4(from).String(), err
}

// seen connects, and returns the source that the other side sees.
func (n *net3) seen(from netns.NsHandle, to string, within time.Duration) (is string, c net.Conn, err error) {
	n.Helper()
	err = inside(from, func() error {
		c, err = (&net.Dialer{Timeout: within}).DialContext(n.Context(), "tcp4", net.JoinHostPort(to, "8080"))
		return err
	})
	if err != nil {
		return "", nil, err
	}
	n.Cleanup(func() { c.Close() })
	is, err = source(c, within)
	return is, c, err
}

func TestThePodReachesTheInternetFromTheCellsAddress(t *testing.T) {
	n := newInternet(t)
	f := n.firewall()
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	see := func(state string, from netns.NsHandle, to, want string) {
		t.Helper()
		within := patience
		if want == "" {
			within = lost
		}
		if is, _, err := n.seen(from, to, within); (err == nil) != (want != "") || err == nil && is != want {
			t.Errorf("%s: %s is reached from %q (%v), want %q", state, to, is, err, want)
		}
	}
	masquerade := &agentapi.Masquerade{As: netip.MustParseAddr(cellIP), Except: prefixes("10.0.0.0/8", "203.0.113.0/24")}
	n.apply(f, func(*agentapi.Firewall) {})
	for _, to := range []string{webIP, partnerIP, outsideIP} {
		see("no masquerade", n.pod, to, podIP)
	}
	// What an internet gateway does with packets of the pod's address.
	n.in(n.outside, func() error { return dropFrom(n.Context(), podIP, "198.51.100.0/24") })
	see("no masquerade, and a gateway", n.pod, webIP, "")

	n.apply(f, func(fw *agentapi.Firewall) { fw.Masquerade = masquerade })
	for to, want := range map[string]string{webIP: cellIP, otherWebIP: cellIP, partnerIP: podIP, outsideIP: podIP} {
		see("masquerade", n.pod, to, want)
	}
	see("masquerade, into the pod", n.outside, podIP, outsideIP)
	see("masquerade, of the cell itself", n.cell, webIP, cellIP)
	_, lasting, err := n.seen(n.pod, webIP, patience)
	if err != nil {
		t.Fatal(err)
	}

	// Filters are about the pod's own address and the destination, and come first.
	n.apply(f, func(fw *agentapi.Firewall) {
		fw.Masquerade = masquerade
		fw.Ingress.Isolated = true
		fw.Egress = agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{
			{Addresses: prefixes(webIP+"/32", "203.0.113.0/24"), AnyPort: true},
		}}
	})
	for to, want := range map[string]string{webIP: cellIP, otherWebIP: "", partnerIP: podIP, outsideIP: ""} {
		see("masquerade and policies", n.pod, to, want)
	}
	see("masquerade and policies, into the pod", n.outside, podIP, "")
	if is, err := source(lasting, patience); err != nil || is != cellIP {
		t.Errorf("a connection that was there before the policies: %q, %v", is, err)
	}

	// An exception is for connections that begin after it.
	n.apply(f, func(fw *agentapi.Firewall) {
		fw.Masquerade = &agentapi.Masquerade{As: masquerade.As, Except: prefixes("10.0.0.0/8", "198.51.100.8/32")}
	})
	for to, want := range map[string]string{webIP: cellIP, otherWebIP: "", partnerIP: cellIP} {
		see("other networks", n.pod, to, want)
	}
	if is, err := source(lasting, patience); err != nil || is != cellIP {
		t.Errorf("a connection that was there before other networks: %q, %v", is, err)
	}
	n.apply(f, func(*agentapi.Firewall) {})
	see("no masquerade again", n.pod, partnerIP, podIP)
}

// An agent that starts anew leaves the masquerade as it is.
func TestTheMasqueradeOutlivesTheAgent(t *testing.T) {
	n := newInternet(t)
	f := n.firewall()
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.apply(f, func(fw *agentapi.Firewall) { fw.Masquerade = &agentapi.Masquerade{As: netip.MustParseAddr(cellIP)} })
	if digest, err := n.firewall().Begin(t.Context()); err != nil || digest != f.Digest() {
		t.Fatalf("began with %q: %v", digest, err)
	}
	if is, _, err := n.seen(n.pod, webIP, patience); err != nil || is != cellIP {
		t.Errorf("%s is reached from %q: %v", webIP, is, err)
	}
}

// Kip dials the agent from an address and port to which the pod has sent from the agent's port.
func TestAPodDoesNotTakeTheConnectionsToItsAgent(t *testing.T) {
	n := newInternet(t)
	f := n.firewall()
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.apply(f, func(fw *agentapi.Firewall) { fw.Masquerade = &agentapi.Masquerade{As: netip.MustParseAddr(cellIP)} })
	kip, agent := netip.MustParseAddrPort(webIP+":40123"), netip.AddrPortFrom(netip.MustParseAddr(cellIP), agentapi.Port)
	n.tellSources(n.cell, agent.String())
	dial := func(ns netns.NsHandle, from, to netip.AddrPort, within time.Duration) (c net.Conn, err error) {
		err = inside(ns, func() error {
			d := net.Dialer{Timeout: within, LocalAddr: net.TCPAddrFromAddrPort(from)}
			c, err = d.DialContext(n.Context(), "tcp4", to.String())
			return err
		})
		return c, err
	}
	// Kip's side does not answer the pod, so that its connection stays half open.
	n.in(n.outside, func() error {
		return nft(n.Context(), "table ip kip { chain input { type filter hook input priority 0; "+
			"tcp dport 40123 tcp flags & (syn | ack) == syn drop; }; }")
	})
	if _, err := dial(n.pod, netip.AddrPortFrom(netip.MustParseAddr(podIP), agentapi.Port), kip, lost); err == nil {
		t.Fatal("what the pod sends is not dropped")
	}
	c, err := dial(n.outside, kip, agent, patience)
	if err != nil {
		t.Fatalf("Kip reaches no agent: %v", err)
	}
	defer c.Close()
	if is, err := source(c, patience); err != nil || is != webIP {
		t.Errorf("the agent is reached from %q: %v", is, err)
	}
}

// dropFrom has the namespace of the caller drop what one address sends to a network.
func dropFrom(ctx context.Context, source, to string) error {
	return nft(ctx, "table ip gateway { chain input { type filter hook input priority 0; ip saddr "+source+" ip daddr "+to+" drop; }; }")
}

// nft loads a program in the namespace of the caller.
func nft(ctx context.Context, program string) error {
	if out, err := exec.CommandContext(ctx, "nft", program).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
