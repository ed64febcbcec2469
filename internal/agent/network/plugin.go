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
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// gateway is the pod's next hop: an address that exists nowhere, since the pod
// has a permanent neighbour entry for it that points at the cell's end of the
// veth. Link-local, so that it can be no address of the cluster.
var gateway = netip.MustParseAddr("169.254.1.1")

type conf struct {
	types.NetConf
	PodIP  netip.Addr `json:"podIP"`
	NodeIP netip.Addr `json:"nodeIP"`
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
	return c, nil
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
	result, err := connect(args, c)
	if err != nil {
		return errors.Join(err, remove(hostVeth(args.ContainerID, args.IfName)))
	}
	return types.PrintResult(result, c.CNIVersion)
}

func connect(args *skel.CmdArgs, c conf) (*current.Result, error) {
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

	name := hostVeth(args.ContainerID, args.IfName)
	if err := remove(name); err != nil { // of an ADD that was cut short
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, uplink.Attrs().MTU
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: args.IfName, PeerNamespace: netlink.NsFd(int(pod)), PeerMTU: uint32(attrs.MTU)}
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

	// Both ends know the other's hardware address for good: no ARP between them.
	podNet := &net.IPNet{IP: c.PodIP.AsSlice(), Mask: net.CIDRMask(32, 32)}
	gwNet := &net.IPNet{IP: gateway.AsSlice(), Mask: net.CIDRMask(32, 32)}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"give the pod its address", func() error { return inPod.AddrAdd(inner, &netlink.Addr{IPNet: podNet}) }},
		{"bring the pod's interface up", func() error { return inPod.LinkSetUp(inner) }},
		{"bring the cell's interface up", func() error { return netlink.LinkSetUp(outer) }},
		{"make the cell known to the pod", func() error {
			return inPod.NeighSet(permanent(inner, gateway, outer.Attrs().HardwareAddr))
		}},
		{"make the pod known to the cell", func() error {
			return netlink.NeighSet(permanent(outer, c.PodIP, inner.Attrs().HardwareAddr))
		}},
		{"route the pod to the cell", func() error {
			return inPod.RouteAdd(&netlink.Route{LinkIndex: inner.Attrs().Index, Dst: gwNet, Scope: netlink.SCOPE_LINK})
		}},
		{"make the cell the pod's gateway", func() error {
			return inPod.RouteAdd(&netlink.Route{LinkIndex: inner.Attrs().Index, Gw: gateway.AsSlice()})
		}},
		// Replace: the route of an older sandbox of the pod may be there still.
		// The source address is what the pod sees of the kubelet's probes.
		{"route the cell to the pod", func() error {
			return netlink.RouteReplace(&netlink.Route{
				LinkIndex: outer.Attrs().Index, Dst: podNet, Scope: netlink.SCOPE_LINK, Src: c.NodeIP.AsSlice(),
			})
		}},
		// The pod may send from its own address only.
		{"turn source validation on", func() error { return sysctl("net/ipv4/conf/"+name+"/rp_filter", "1") }},
	} {
		if err := step.do(); err != nil {
			return nil, fmt.Errorf("%s (%s, %s): %w", step.what, c.PodIP, name, err)
		}
	}
	return &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: name, Mac: outer.Attrs().HardwareAddr.String(), Mtu: attrs.MTU},
			{Name: args.IfName, Mac: inner.Attrs().HardwareAddr.String(), Mtu: attrs.MTU, Sandbox: args.Netns},
		},
		IPs:    []*current.IPConfig{{Interface: current.Int(1), Address: *podNet, Gateway: gateway.AsSlice()}},
		Routes: []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, GW: gateway.AsSlice()}},
		DNS:    c.DNS,
	}, nil
}

func permanent(link netlink.Link, ip netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: ip.AsSlice(), HardwareAddr: mac,
	}
}

// del removes the veth, and with it all that add made. It is idempotent and
// does not need the pod's network namespace, which may be gone.
func del(args *skel.CmdArgs) error {
	return remove(hostVeth(args.ContainerID, args.IfName))
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
	name := hostVeth(args.ContainerID, args.IfName)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up %s: %w", name, err)
	}
	routes, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{LinkIndex: link.Attrs().Index}, netlink.RT_FILTER_OIF)
	if err != nil {
		return fmt.Errorf("list the routes through %s: %w", name, err)
	}
	for _, r := range routes {
		if r.Dst != nil && r.Dst.IP.Equal(c.PodIP.AsSlice()) {
			return nil
		}
	}
	return fmt.Errorf("no route to %s through %s", c.PodIP, name)
}
