package firewall

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/elotl/kip/internal/agentapi"
)

// beside adds a pod beside the cell's, with an address of the cell alone.
func (n *net3) beside(address string) (ns netns.NsHandle) {
	n.Helper()
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var err error
		ns, err = netns.New()
		made <- err
	}()
	if err := <-made; err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { ns.Close() })
	gateway := net.ParseIP("169.254.1.1")
	n.in(n.cell, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "dset0"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("dset0")
		if err != nil {
			return err
		}
		dst, _ := netlink.ParseIPNet(address + "/32")
		own, _ := netlink.ParseAddr("169.254.1.1/32")
		return errors.Join(netlink.AddrAdd(l, own), netlink.LinkSetUp(l),
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}),
			sysctls("net.ipv4.conf.dset0.rp_filter=0"))
	})
	n.in(ns, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		own, _ := netlink.ParseAddr(address + "/32")
		to, _ := netlink.ParseIPNet("169.254.1.1/32")
		return errors.Join(netlink.AddrAdd(l, own), netlink.LinkSetUp(l),
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway}))
	})
	return ns
}

func TestAPodBesideTheCellsSendsFromTheCellsAddressAndReachesNoMetadataService(t *testing.T) {
	n := newNet3(t)
	const address = "169.254.66.1"
	beside := n.beside(address)
	n.listen(n.pod, ":80") // the first: Go asks once whether there is IPv6, and not all namespaces have it
	n.tellSources(n.outside, ":8080")
	n.listen(n.outside, ":80")
	n.listen(n.cell, ":9100")
	n.listen(n.cell, ":6421")
	n.listen(beside, ":80")
	f := n.firewall()
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.apply(f, func(fw *agentapi.Firewall) {
		fw.Egress = agentapi.Direction{Isolated: true}
		fw.Beside = &agentapi.Beside{PodUID: "uid", HostPorts: []agentapi.Ports{span("TCP", 9100, 9100)}}
	})
	if is, _, err := n.seen(beside, outsideIP, patience); err != nil || is != cellIP {
		t.Errorf("outside it is seen as %s (%v), want %s", is, err, cellIP)
	}
	out := attempt{"out of a copy", beside, "", outsideIP + ":80"}
	metadata := attempt{"a copy to the metadata service", beside, "", "169.254.169.254:80"}
	probe := attempt{"the kubelet's probe of a copy", n.cell, "", address + ":80"}
	exporter := attempt{"the pod to a host port", n.pod, "", cellIP + ":9100"}
	agentPort := attempt{"the pod to the agent", n.pod, "", cellIP + ":6421"}
	podOut := attempt{"the isolated pod out", n.pod, "", outsideIP + ":80"}
	direct := attempt{"the isolated pod to a copy's own address", n.pod, "", address + ":80"}
	n.expect("beside the pod", []attempt{out, metadata, probe, exporter, agentPort, podOut, direct}, out, probe, exporter)
	// A copy has no address but its own, and nobody but the cell has a way to that.
	n.apply(f, func(fw *agentapi.Firewall) {
		fw.Beside = &agentapi.Beside{PodUID: "uid", HostPorts: []agentapi.Ports{span("TCP", 9100, 9100)}}
	})
	n.in(n.outside, func() error {
		to, _ := netlink.ParseIPNet("169.254.66.0/24")
		up, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Dst: to, Gw: net.ParseIP(cellIP)})
	})
	const forged = "10.9.0.99"
	n.in(beside, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		other, _ := netlink.ParseAddr(forged + "/32")
		return netlink.AddrAdd(l, other)
	})
	n.in(n.cell, func() error { // even if it has a way back
		l, err := netlink.LinkByName("dset0")
		if err != nil {
			return err
		}
		to, _ := netlink.ParseIPNet(forged + "/32")
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK})
	})
	n.in(n.outside, func() error {
		to, _ := netlink.ParseIPNet(forged + "/32")
		up, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Dst: to, Gw: net.ParseIP(cellIP)})
	})
	toCell := attempt{"a copy to the cell", beside, "", cellIP + ":9100"}
	forgedOut := attempt{"out of a copy by another's address", beside, forged, outsideIP + ":80"}
	forgedIn := attempt{"a copy to the cell by another's address", beside, forged, cellIP + ":9100"}
	neighbour := attempt{"a neighbour to a copy", n.outside, "", address + ":80"}
	n.expect("where the pod is not isolated", []attempt{out, toCell, probe, podOut, direct, forgedOut, forgedIn, neighbour},
		out, toCell, probe, podOut)
	// Of what runs beside it, nothing is left when Kip says so.
	n.apply(f, func(*agentapi.Firewall) {})
	n.expect("alone", []attempt{exporter})
}

func TestKipOpensNoPortOfTheCellItself(t *testing.T) {
	for name, b := range map[string]agentapi.Beside{
		"no UID":          {},
		"the agent's":     {PodUID: "u", HostPorts: []agentapi.Ports{span("TCP", 6000, 7000)}},
		"the kubelet's":   {PodUID: "u", HostPorts: []agentapi.Ports{span("TCP", 10250, 10250)}},
		"no protocol":     {PodUID: "u", HostPorts: []agentapi.Ports{span("IP", 1, 1)}},
		"no range":        {PodUID: "u", HostPorts: []agentapi.Ports{span("TCP", 2, 1)}},
		"every port":      {PodUID: "u", HostPorts: []agentapi.Ports{span("TCP", 0, 65535)}},
		"kube-proxy's":    {PodUID: "u", HostPorts: []agentapi.Ports{span("UDP", 10249, 10256)}},
		"one and another": {PodUID: "u", HostPorts: []agentapi.Ports{span("TCP", 80, 80), span("TCP", agentapi.Port, agentapi.Port)}},
	} {
		if err := validate(agentapi.Firewall{PodIP: netip.MustParseAddr(podIP), Beside: &b}); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}
