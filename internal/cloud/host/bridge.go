package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/netdump"
)

// alias marks our network devices, so that they are told from others' even when
// all records are lost.
func (c Config) alias() string { return "kip local cloud in " + c.StateDir }

// linkName is the host's end of a machine's network cable: 15 characters, the
// longest name that Linux takes.
func linkName(id string) string { return "kip" + strings.TrimPrefix(id, "i-")[:12] }

// Gateway returns the host's address on the bridge, where things that machines
// must reach can listen once EnsureBridge has returned.
func (c Config) Gateway() (netip.Addr, error) {
	c, err := c.WithDefaults()
	if err != nil {
		return netip.Addr{}, err
	}
	return network{c.CIDR}.gateway(), nil
}

// EnsureBridge makes the bridge with the host's address on it, if it is not
// there yet. New does the same; whoever needs the address earlier calls this.
func EnsureBridge(ctx context.Context, cfg Config) error {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return err
	}
	if err := MustBeRoot(); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("make stateDir: %w", err)
	}
	_, err = ensureBridge(ctx, cfg)
	return err
}

func bridgeRecord(cfg Config) string { return filepath.Join(cfg.StateDir, "bridge.json") }

func ensureBridge(ctx context.Context, cfg Config) (index int, err error) {
	if cfg.guest() {
		return hostBridge(cfg)
	}
	plan := network{cfg.CIDR}
	link, err := ownBridge(cfg)
	if err != nil {
		return 0, err
	}
	if link == nil {
		if err := refuseOverlap(unix.AF_INET, "cidr", cfg.CIDR); err != nil {
			return 0, err
		}
		data, err := json.Marshal(map[string]string{"bridge": cfg.Bridge, "cidr": cfg.CIDR.String()})
		if err != nil {
			return 0, err
		}
		if err := atomicfile.Write(bridgeRecord(cfg), data, 0o600); err != nil {
			return 0, fmt.Errorf("record bridge %s: %w", cfg.Bridge, err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = cfg.Bridge
		// Set, or the bridge takes on the lowest address of its ports and
		// changes it as machines come and go.
		attrs.HardwareAddr = HardwareAddr(plan.gateway())
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, fmt.Errorf("make bridge %s: %w", cfg.Bridge, Missing(err, "bridge"))
		}
		if link, err = ownBridge(cfg); err != nil {
			return 0, err
		}
		if link == nil {
			return 0, fmt.Errorf("make bridge %s: it vanished", cfg.Bridge)
		}
	}
	if link.Attrs().Alias != cfg.alias() {
		if err := netlink.LinkSetAlias(link, cfg.alias()); err != nil {
			return 0, fmt.Errorf("mark bridge %s: %w", cfg.Bridge, err)
		}
	}
	want := &net.IPNet{IP: plan.gateway().AsSlice(), Mask: net.CIDRMask(cfg.CIDR.Bits(), 32)}
	found, err := hasAddress(cfg, link, want)
	if err != nil {
		return 0, err
	}
	if !found {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: want}); err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, fmt.Errorf("give bridge %s address %s: %w", cfg.Bridge, want, err)
		}
	}
	if err := bridgeIPv6(cfg, link); err != nil {
		return 0, err
	}
	guardAgents(ctx, cfg)
	if err := netlink.LinkSetUp(link); err != nil {
		return 0, fmt.Errorf("bring bridge %s up: %w", cfg.Bridge, err)
	}
	warnOfFirewall(ctx, cfg)
	return link.Attrs().Index, nil
}

// hasAddress says whether the bridge has its address. Another one is an error.
func hasAddress(cfg Config, link netlink.Link, want *net.IPNet) (found bool, err error) {
	addrs, err := netdump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, unix.AF_INET) })
	if err != nil {
		return false, fmt.Errorf("addresses of bridge %s: %w", cfg.Bridge, err)
	}
	for _, a := range addrs {
		if a.IPNet.String() != want.String() {
			return false, fmt.Errorf("bridge %s has address %s, want %s: end its machines (Destroy) before changing cidr", cfg.Bridge, a.IPNet, want)
		}
		found = true
	}
	return found, nil
}

// hostBridge returns the index of the bridge that a guest's machines are on.
func hostBridge(cfg Config) (index int, err error) {
	link, err := netlink.LinkByName(cfg.Bridge)
	if err != nil {
		return 0, fmt.Errorf("look for bridge %s, on which group %s is a guest: %w", cfg.Bridge, cfg.Group, err)
	}
	want := &net.IPNet{IP: network{cfg.CIDR}.gateway().AsSlice(), Mask: net.CIDRMask(cfg.CIDR.Bits(), 32)}
	found, err := hasAddress(cfg, link, want)
	if err == nil && !found {
		err = fmt.Errorf("bridge %s, on which group %s is a guest, has no address: want %s", cfg.Bridge, cfg.Group, want)
	}
	if err == nil && cfg.IPv6CIDR.IsValid() {
		found, err = hasAddressIPv6(cfg, link)
		if err == nil && !found {
			err = fmt.Errorf("bridge %s, on which group %s is a guest, has no IPv6 address: want %s", cfg.Bridge, cfg.Group,
				cfg.networkIPv6().gateway())
		}
	}
	return link.Attrs().Index, err
}

// ownBridge returns our bridge, nil when there is none, or an error when the
// name is someone else's. Ours bears our alias.
func ownBridge(cfg Config) (netlink.Link, error) {
	link, err := netlink.LinkByName(cfg.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for bridge %s: %w", cfg.Bridge, err)
	}
	owner, err := bridgeOwner(cfg, link)
	if err != nil {
		return nil, err
	}
	if owner == cfg.StateDir {
		return link, nil
	}
	if _, err := os.Stat(owner); !errors.Is(err, fs.ErrNotExist) {
		return nil,
			fmt.Errorf("bridge %s belongs to the machines in %s: stop that Kip and remove its machines, or choose another bridge and cidr",
				cfg.Bridge, owner)
	}
	// Its owner's records were deleted, so nobody else will ever remove it.
	if err := netlink.LinkSetAlias(link, cfg.alias()); err != nil {
		return nil, fmt.Errorf("take over bridge %s from %s, which is gone: %w", cfg.Bridge, owner, err)
	}
	return link, nil
}

// bridgeOwner returns the state folder of the cloud that made the device.
func bridgeOwner(cfg Config, link netlink.Link) (stateDir string, err error) {
	if owner, ok := strings.CutPrefix(link.Attrs().Alias, Config{}.alias()); ok {
		return owner, nil
	}
	// The kernel does not take an alias along with a new device. Whoever died
	// in between left a record and the device with the address made for it.
	made := HardwareAddr(network{cfg.CIDR}.gateway())
	if _, err := os.Stat(bridgeRecord(cfg)); err == nil && link.Attrs().HardwareAddr.String() == made.String() {
		return cfg.StateDir, nil
	}
	return "", fmt.Errorf("network device %s exists and is not Kip's: choose another bridge, or remove it: ip link delete %s", cfg.Bridge,
		cfg.Bridge)
}

// refuseOverlap protects networks that the host already reaches from the own one of a
// family, which the configuration has in key.
func refuseOverlap(family int, key string, own netip.Prefix) error {
	routes, err := netdump.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
	if err != nil {
		return fmt.Errorf("list routes, to see whether %s is free: %w", key, err)
	}
	if p, found := overlapping(routes, own); found {
		return fmt.Errorf("%s %s overlaps the host's route to %s: choose another %s", key, own, p, key)
	}
	return nil
}

// overlapping is the first route, but for default ones, to a part of a network.
func overlapping(routes []netlink.Route, own netip.Prefix) (p netip.Prefix, found bool) {
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if p := netip.PrefixFrom(addr.Unmap(), bits); ok && bits > 0 && p.Overlaps(own) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// warnOfFirewall names the one well-known way in which machines cannot reach
// each other: frames on bridges are shown to iptables, and forwarding is
// dropped by default (as Docker sets it up).
func warnOfFirewall(ctx context.Context, cfg Config) {
	b, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
	if err != nil || strings.TrimSpace(string(b)) != "1" {
		return
	}
	if FirewallDrops(ctx, cfg.Bridge) {
		cfg.Log.WarnContext(ctx, "the host's firewall drops packets between machines",
			"bridge", cfg.Bridge,
			"mend", fmt.Sprintf("iptables -I FORWARD -i %s -o %s -j ACCEPT", cfg.Bridge, cfg.Bridge))
	}
}

// FirewallDrops reports whether iptables drops by default what this host forwards for a bridge.
func FirewallDrops(ctx context.Context, bridge string) bool {
	out, err := exec.CommandContext(ctx, "iptables", "-w", "-S", "FORWARD").Output()
	return err == nil && forwardDropped(string(out), bridge) // without iptables it drops nothing
}

func forwardDropped(rules, bridge string) bool {
	return strings.Contains(rules, "-P FORWARD DROP") && !strings.Contains(rules, "-i "+bridge+" ")
}

// plug makes the machine's network cable: one end on the bridge, the other
// appearing as eth0 in the network namespace of the process.
func plug(cfg Config, bridgeIndex int, id string, pid int, ip netip.Addr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = linkName(id)
	attrs.MasterIndex = bridgeIndex
	attrs.Flags = net.FlagUp
	attrs.Group = cfg.cableGroup()
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         "eth0",
		PeerNamespace:    netlink.NsPid(pid),
		PeerHardwareAddr: HardwareAddr(ip),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make network device %s of %s on %s: %w", attrs.Name, id, cfg.Bridge, Missing(err, "veth"))
	}
	if err := netlink.LinkSetAlias(veth, cfg.alias()); err != nil {
		return fmt.Errorf("mark network device %s of %s: %w", attrs.Name, id, err)
	}
	// A machine may ask for itself at a node port of the host. A host with br_netfilter bridges that packet back instead of routing
	// it, and a bridge sends nothing back to the port that it came from, unless that port is in hairpin mode.
	if err := netlink.LinkSetHairpin(veth, true); err != nil {
		return fmt.Errorf("set hairpin mode for network device %s of %s: %w", attrs.Name, id, err)
	}
	return nil
}

// plugTap makes the host's end of a cable whose other one is a process's that opens the
// device. It outlives that process, until unplug.
func plugTap(cfg Config, bridgeIndex int, id string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = linkName(id)
	attrs.MasterIndex = bridgeIndex
	tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}
	if err := unplug(attrs.Name); err != nil { // an earlier boot's
		return err
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("make tap device %s of %s on %s: %w (it needs /dev/net/tun: modprobe tun)", attrs.Name, id, cfg.Bridge, err)
	}
	if err := netlink.LinkSetAlias(tap, cfg.alias()); err != nil {
		return fmt.Errorf("mark network device %s of %s: %w", attrs.Name, id, err)
	}
	if err := group(cfg, tap); err != nil {
		return err
	}
	// What the host says there itself would be a second voice on the bridge.
	if err := SettleIPv6(attrs.Name, false); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(tap); err != nil {
		return fmt.Errorf("bring network device %s of %s up: %w", attrs.Name, id, err)
	}
	return nil
}

// unplug removes the cable, if it is there.
func unplug(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	// The kernel removes it too, some time after the machine's last process.
	if err == nil || errors.Is(err, unix.ENODEV) || errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	return fmt.Errorf("remove network device %s: %w", name, err)
}
