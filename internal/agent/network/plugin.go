package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/netdump"
)

// gateway is the pod's next hop: an address that exists nowhere, since the pod
// has a permanent neighbour entry for it that points at the cell's end of the
// veth. Link-local, so that it can be no address of the cluster.
var gateway = netip.MustParseAddr("169.254.1.1")

type conf struct {
	types.NetConf
	PodIP  netip.Addr `json:"podIP"`
	NodeIP netip.Addr `json:"nodeIP"`
	// PodIPv6 and NodeIPv6 are there together, or not at all: then the pod has no IPv6.
	PodIPv6  netip.Addr `json:"podIPv6,omitzero"`
	NodeIPv6 netip.Addr `json:"nodeIPv6,omitzero"`
	// Behind are IPv4 networks that the pod is the way to.
	Behind []netip.Prefix `json:"behind,omitempty"`
	// Gates below GateDir must be open before the pod has its interface.
	GateDir string   `json:"gateDir"`
	Gates   []string `json:"gates"`
}

// gateWait bounds how long an ADD waits for its gates. The kubelet tries again,
// and says in an Event of the pod what was waited for.
const gateWait = 20 * time.Second

func parse(stdin []byte) (conf, error) {
	var c conf
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, types.NewError(types.ErrDecodingFailure, "decode the network configuration", err.Error())
	}
	if !c.PodIP.Is4() || !c.NodeIP.Is4() {
		return c, types.NewError(types.ErrInvalidNetworkConfig, "network configuration",
			fmt.Sprintf("podIP %q and nodeIP %q must be IPv4 addresses", c.PodIP, c.NodeIP))
	}
	if six := []netip.Addr{c.PodIPv6, c.NodeIPv6}; slices.ContainsFunc(six, netip.Addr.IsValid) && !allIPv6(six) {
		return c, types.NewError(types.ErrInvalidNetworkConfig, "network configuration",
			fmt.Sprintf("podIPv6 %q and nodeIPv6 %q must both be IPv6 addresses, or be left out", c.PodIPv6, c.NodeIPv6))
	}
	for _, p := range c.Behind {
		if !p.IsValid() || !p.Addr().Is4() || p.Contains(c.NodeIP) {
			return c, types.NewError(types.ErrInvalidNetworkConfig, "network configuration",
				fmt.Sprintf("behind: %q must be an IPv4 network without nodeIP %s", p, c.NodeIP))
		}
	}
	return c, nil
}

func allIPv6(all []netip.Addr) bool {
	return !slices.ContainsFunc(all, func(a netip.Addr) bool { return !a.Is6() || a.Is4In6() })
}

// way is how the pod is reached by one of its addresses, and gets out.
type way struct{ pod, node, gateway netip.Addr }

// ways are those of the families that the pod has.
func (c conf) ways() []way {
	all := []way{{c.PodIP, c.NodeIP, gateway}}
	if c.PodIPv6.IsValid() {
		all = append(all, way{c.PodIPv6, c.NodeIPv6, gateway6})
	}
	return all
}

// whole is the network of this one address.
func whole(ip netip.Addr) *net.IPNet {
	return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
}

// anywhere is the network of all addresses of a family.
func anywhere(ip netip.Addr) net.IPNet {
	return net.IPNet{IP: make(net.IP, ip.BitLen()/8), Mask: net.CIDRMask(0, ip.BitLen())}
}

// Plugin runs the CNI plugin: the command is in the environment, the
// configuration on stdin, the result goes to stdout. It returns an exit code.
//
// Kip has a plugin of its own because a cell's case is so much smaller than
// that of the standard ones: one pod, whose address is known before it starts.
// ptp, static and loopback would be three more binaries and five more processes
// a pod.
func Plugin() int {
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: add, Del: del, Check: check}, version.All, "itzo: the pod of a Kip cell")
	if err == nil {
		return 0
	}
	if perr := err.Print(); perr != nil {
		fmt.Fprintln(os.Stderr, "itzo-cni:", err, perr)
	}
	return 1
}

// hostVeth names the cell's end of a container's veth. It depends on the
// container, because the kubelet may ask to delete an old sandbox's network
// again when the next sandbox has its own already.
func hostVeth(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName))
	return "pod" + hex.EncodeToString(sum[:6]) // 15 characters, the most that Linux takes
}

// hardwareAddr returns the address of one end of a container's veth, the cell's or the pod's. The plugin sets
// both. To a device whose address the kernel made up udev gives another one (MACAddressPolicy=persistent), which
// may be after the plugin has read the first and told the other end for good. An address that was set stays.
// Sources: systemd.link(5), "MACAddressPolicy="; aws/amazon-vpc-cni-k8s issue 2103 and pull request 3348.
func hardwareAddr(containerID, ifName, end string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName + "/" + end))
	address := net.HardwareAddr(sum[:6])
	address[0] = address[0]&^1 | 2 // of one device, and locally administered
	return address
}

func add(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), gateWait)
	defer cancel()
	if err := Wait(ctx, c.GateDir, c.Gates...); err != nil {
		return types.NewError(types.ErrTryAgainLater, "the pod's network is not ready", err.Error())
	}
	beside, err := isBeside(c.GateDir, args.Args)
	if err != nil {
		return err
	}
	var result *current.Result
	if beside {
		result, err = connectBeside(args, c)
	} else {
		result, err = connect(args, c)
	}
	if err != nil {
		return errors.Join(err, removeAll(args))
	}
	return types.PrintResult(result, c.CNIVersion)
}

// connect gives the cell's pod its addresses.
func connect(args *skel.CmdArgs, c conf) (*current.Result, error) {
	return connectBy(args, c, hostVeth(args.ContainerID, args.IfName))
}

// connectBy gives a pod its addresses, by a veth whose end in the cell has this name.
func connectBy(args *skel.CmdArgs, c conf, name string) (*current.Result, error) {
	uplink, err := uplinkOf(c.NodeIP)
	if err != nil {
		return nil, err
	}
	pod, err := netns.GetFromPath(args.Netns)
	if err != nil {
		return nil, fmt.Errorf("open the pod's network namespace %s: %w", args.Netns, err)
	}
	defer pod.Close()
	inPod, err := netlink.NewHandleAt(pod, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("enter the pod's network namespace %s: %w", args.Netns, err)
	}
	defer inPod.Close()
	p, err := makePair(args, name, pod, inPod, uplink.Attrs().MTU)
	if err != nil {
		return nil, err
	}
	for _, s := range p.steps(c) {
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("%s (%s, %s): %w", s.what, c.PodIP, p.outer.Attrs().Name, err)
		}
	}
	return p.result(args, c), nil
}

// pair are the two ends of a container's veth, the cell's and the pod's.
type pair struct {
	pod          netns.NsHandle
	inPod        *netlink.Handle // acts in that namespace
	outer, inner netlink.Link
}

// makePair makes the veth of a container, in the place of one that an ADD left that was cut
// short.
func makePair(args *skel.CmdArgs, name string, pod netns.NsHandle, inPod *netlink.Handle, mtu int) (*pair, error) {
	if err := remove(name); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	attrs.HardwareAddr = hardwareAddr(args.ContainerID, args.IfName, "cell")
	veth := &netlink.Veth{
		LinkAttrs:     attrs,
		PeerName:      args.IfName,
		PeerNamespace: netlink.NsFd(int(pod)),
		PeerMTU:       uint32(mtu),

		PeerHardwareAddr: hardwareAddr(args.ContainerID, args.IfName, "pod"),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make veth %s with %s in the pod: %w", name, args.IfName, err)
	}
	outer, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", name, err)
	}
	inner, err := inPod.LinkByName(args.IfName)
	if err != nil {
		return nil, fmt.Errorf("look up %s in the pod: %w", args.IfName, err)
	}
	return &pair{
		pod:   pod,
		inPod: inPod,
		outer: outer,
		inner: inner,
	}, nil
}

// step is one of those that connect a pod.
type step struct {
	what string
	do   func() error
}

// steps are all that make a network of the two ends, in their order.
func (p *pair) steps(c conf) []step {
	six := c.PodIPv6.IsValid()
	inner, outer := p.inner.Attrs().Name, p.outer.Attrs().Name
	steps := []step{
		{"see to IPv6 in the pod", func() error { return within(p.pod, func() error { return setIPv6(inner, six) }) }},
		{"see to IPv6 in the cell", func() error { return setIPv6(outer, six) }},
	}
	for _, w := range c.ways() {
		steps = append(steps, step{"give the pod its address " + w.pod.String(), func() error {
			address := &netlink.Addr{IPNet: whole(w.pod)}
			if w.pod.Is6() {
				// Nobody else on this link can have it: there is nothing to detect.
				address.Flags = unix.IFA_F_NODAD
			}
			return p.inPod.AddrAdd(p.inner, address)
		}})
	}
	steps = append(steps,
		step{"bring the pod's interface up", func() error { return p.inPod.LinkSetUp(p.inner) }},
		step{"bring the cell's interface up", func() error { return netlink.LinkSetUp(p.outer) }},
	)
	for _, w := range c.ways() {
		steps = append(steps, p.routes(w)...)
	}
	for _, network := range c.Behind {
		steps = append(steps, step{"route " + network.String() + " to the pod", func() error {
			return netlink.RouteReplace(&netlink.Route{
				LinkIndex: p.outer.Attrs().Index,
				Dst:       &net.IPNet{IP: network.Addr().AsSlice(), Mask: net.CIDRMask(network.Bits(), 32)},
				Gw:        c.PodIP.AsSlice(),
				Flags:     int(netlink.FLAG_ONLINK),
			})
		}})
	}
	// The pod may send from its own address, and for what is behind it, only; for IPv6 the
	// firewall sees to it.
	return append(steps, step{"turn source validation on", func() error { return sysctl("net/ipv4/conf/"+outer+"/rp_filter", "1") }})
}

// routes lead from each end to the other, for the addresses of one family.
func (p *pair) routes(w way) []step {
	return []step{
		// Both ends know the other's hardware address for good: no ARP between them.
		{"make the cell known to the pod", func() error {
			return p.inPod.NeighSet(permanent(p.inner, w.gateway, p.outer.Attrs().HardwareAddr))
		}},
		{"make the pod known to the cell", func() error {
			return netlink.NeighSet(permanent(p.outer, w.pod, p.inner.Attrs().HardwareAddr))
		}},
		{"route the pod to the cell", func() error {
			return p.inPod.RouteAdd(&netlink.Route{LinkIndex: p.inner.Attrs().Index, Dst: whole(w.gateway), Scope: netlink.SCOPE_LINK})
		}},
		{"make the cell the pod's gateway", func() error {
			return p.inPod.RouteAdd(&netlink.Route{LinkIndex: p.inner.Attrs().Index, Gw: w.gateway.AsSlice()})
		}},
		// Replace: the route of an older sandbox of the pod may be there still.
		// The source address is what the pod sees of the kubelet's probes.
		{"route the cell to the pod", func() error {
			return netlink.RouteReplace(&netlink.Route{
				LinkIndex: p.outer.Attrs().Index,
				Dst:       whole(w.pod),
				Scope:     netlink.SCOPE_LINK,
				Src:       w.node.AsSlice(),
			})
		}},
	}
}

// result is what the kubelet is told of the network.
func (p *pair) result(args *skel.CmdArgs, c conf) *current.Result {
	outer, inner := p.outer.Attrs(), p.inner.Attrs()
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: outer.Name, Mac: outer.HardwareAddr.String(), Mtu: outer.MTU},
			{Name: inner.Name, Mac: inner.HardwareAddr.String(), Mtu: inner.MTU, Sandbox: args.Netns},
		},
		DNS: c.DNS,
	}
	for _, w := range c.ways() {
		result.IPs = append(result.IPs, &current.IPConfig{Interface: current.Int(1), Address: *whole(w.pod), Gateway: w.gateway.AsSlice()})
		result.Routes = append(result.Routes, &types.Route{Dst: anywhere(w.pod), GW: w.gateway.AsSlice()})
	}
	return result
}

func permanent(link netlink.Link, ip netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex:    link.Attrs().Index,
		Family:       family(ip),
		State:        netlink.NUD_PERMANENT,
		IP:           ip.AsSlice(),
		HardwareAddr: mac,
	}
}

// family is that of an address, as the kernel counts them.
func family(ip netip.Addr) int {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// del removes the veth, and with it all that add made. It is idempotent and
// does not need the pod's network namespace, which may be gone.
func del(args *skel.CmdArgs) error { return removeAll(args) }

// removeAll removes the veth of a container, whichever pod's it is.
func removeAll(args *skel.CmdArgs) error {
	return errors.Join(remove(hostVeth(args.ContainerID, args.IfName)), remove(besideVeth(args.ContainerID, args.IfName)))
}

func remove(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %s: %w", name, err)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

func check(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if name := besideVeth(args.ContainerID, args.IfName); there(name) {
		return nil // its routes go with it
	}
	name := hostVeth(args.ContainerID, args.IfName)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up %s: %w", name, err)
	}
	for _, w := range c.ways() {
		routes, err := netdump.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family(w.pod), &netlink.Route{LinkIndex: link.Attrs().Index}, netlink.RT_FILTER_OIF)
		})
		if err != nil {
			return fmt.Errorf("list the routes through %s: %w", name, err)
		}
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.IP.Equal(w.pod.AsSlice()) }) {
			return fmt.Errorf("no route to %s through %s", w.pod, name)
		}
	}
	return nil
}
