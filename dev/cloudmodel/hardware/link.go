package hardware

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/netdump"
)

// Services are where instances find their cloud's own services. Clouds differ: each model says where its cloud has them.
type Services struct {
	// Network has all of them.
	Network netip.Prefix
	// Metadata is where instances ask for metadata, and Clock where for the time.
	Metadata netip.AddrPort
	Clock    netip.Addr
}

// ntpPort is that of the time.
const ntpPort = 123

// priority is that of the rule, after the kernel's own table of this host's addresses.
const priority = 16925

// tables is added to a bridge's index for its table of routes.
const tables = 169_254_000

// link is the services' addresses on one bridge. Only what comes from there is led to it: the
// host may have a metadata service of its own at the same address.
type link struct {
	net.Listener // of metadata
	clock        net.PacketConn
	bridge       string
}

func (s Services) rule(bridge string, index int) *netlink.Rule {
	r := netlink.NewRule()
	r.IifName, r.Dst, r.Table, r.Priority = bridge, s.network(), tables+index, priority
	r.Family = unix.AF_INET
	return r
}

func (s Services) network() *net.IPNet {
	return &net.IPNet{IP: s.Network.Addr().AsSlice(), Mask: net.CIDRMask(s.Network.Bits(), 32)}
}

// plug leads what a bridge sends to the services to this process.
func plug(ctx context.Context, bridge string, at Services) (_ *link, err error) {
	device, err := netlink.LinkByName(bridge)
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", bridge, err)
	}
	if err := Unplug(bridge); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, Unplug(bridge))
		}
	}()
	index := device.Attrs().Index
	// It goes with the bridge.
	route := &netlink.Route{
		LinkIndex: index,
		Dst:       at.network(),
		Table:     tables + index,
		Type:      unix.RTN_LOCAL,
		Scope:     netlink.SCOPE_HOST,
	}
	if err := netlink.RouteReplace(route); err != nil {
		return nil, fmt.Errorf("lead %s to this host: %w", at.Network, err)
	}
	if err := netlink.RuleAdd(at.rule(bridge, index)); err != nil {
		return nil, fmt.Errorf("lead %s of bridge %s to this host, for which the kernel needs policy routing: %w", at.Network, bridge, err)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			// No device has the address, and other bridges may have a listener there.
			set = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1),
				unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, bridge))
		})
		return errors.Join(err, set)
	}}
	l, err := lc.Listen(ctx, "tcp4", at.Metadata.String())
	if err != nil {
		return nil, fmt.Errorf("listen for bridge %s: %w", bridge, err)
	}
	c, err := lc.ListenPacket(ctx, "udp4", netip.AddrPortFrom(at.Clock, ntpPort).String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for bridge %s: %w", bridge, err), l.Close())
	}
	return &link{l, c, bridge}, nil
}

func (l *link) unplug() error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return errors.Join(err, l.clock.Close(), Unplug(l.bridge))
}

// Unplug removes what a process that was killed has left for a bridge, which may be gone.
func Unplug(bridge string) error {
	if err := closeGateway(context.Background(), bridge); err != nil {
		return fmt.Errorf("remove the gateways of bridge %s: %w", bridge, err)
	}
	rules, err := Plugged(bridge)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove the rule of bridge %s: %w", bridge, err)
		}
	}
	return nil
}

// Plugged are the rules that lead what a bridge sends to its cloud's services.
func Plugged(bridge string) (found []netlink.Rule, err error) {
	all, err := netdump.Whole(func() ([]netlink.Rule, error) { return netlink.RuleList(unix.AF_INET) })
	if err != nil {
		return nil, fmt.Errorf("list the rules of routing: %w", err)
	}
	for _, r := range all {
		if r.IifName == bridge && r.Priority == priority {
			r.Family = unix.AF_INET
			found = append(found, r)
		}
	}
	return found, nil
}
