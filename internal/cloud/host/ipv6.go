package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/netdump"
)

// maxIPv6Bits leaves 32 bits of an IPv6 network to the plan of addresses.
const maxIPv6Bits = 96

// checkIPv6 says whether the network is one for machines. The zero prefix is: they
// have no IPv6 then.
func (c Config) checkIPv6() error {
	p := c.IPv6CIDR
	if !p.IsValid() {
		return nil
	}
	if a := p.Addr(); !a.Is6() || a.Is4In6() || !a.IsGlobalUnicast() || p.Bits() < 16 || p.Bits() > maxIPv6Bits || p != p.Masked() {
		return fmt.Errorf("ipv6CIDR %q: want an IPv6 network between /16 and /%d with no host bits set, such as fd10:110::/64", p, maxIPv6Bits)
	}
	return nil
}

// networkIPv6 is the plan of addresses in an IPv6 network: each has the same place in
// it as its fellow has in the IPv4 network.
type networkIPv6 struct {
	cidr netip.Prefix
	four network
}

func (n networkIPv6) at(offset uint32) netip.Addr {
	b := n.cidr.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], offset)
	return netip.AddrFrom16(b)
}

func (n networkIPv6) gateway() netip.Addr               { return n.at(1) }
func (n networkIPv6) management(slot uint32) netip.Addr { return n.at(slot) }
func (n networkIPv6) pod(slot uint32) netip.Addr        { return n.at(n.four.half() + slot) }

func (c Config) networkIPv6() networkIPv6 { return networkIPv6{c.IPv6CIDR, network{c.CIDR}} }

// addressIPv6 gives an instance the IPv6 addresses of its slot, none without a
// network for them.
func (c Config) addressIPv6(i *cloud.Instance, slot uint32) {
	i.ManagementIPv6, i.PodIPv6 = netip.Addr{}, netip.Addr{}
	if c.IPv6CIDR.IsValid() {
		i.ManagementIPv6, i.PodIPv6 = c.networkIPv6().management(slot), c.networkIPv6().pod(slot)
	}
}

// GuestAddressIPv6 is the IPv6 address of the machine that GuestAddress tells of; the
// zero address without a network for them.
func (c Config) GuestAddressIPv6(n int) (netip.Addr, error) {
	four, err := c.GuestAddress(n)
	if err != nil || !c.IPv6CIDR.IsValid() {
		return netip.Addr{}, err
	}
	c, err = c.WithDefaults()
	if err != nil {
		return netip.Addr{}, err
	}
	base, here := c.CIDR.Addr().As4(), four.As4()
	return c.networkIPv6().at(binary.BigEndian.Uint32(here[:]) - binary.BigEndian.Uint32(base[:])), nil
}

// SettleIPv6 turns IPv6 on or off for a link of this thread's network namespace. Where
// it is off there is not even a link-local address, by which neighbours could get past
// what guards the IPv4 one; where it is on nobody believes a neighbour who says that he
// is a router.
func SettleIPv6(link string, on bool) error {
	settings := []struct{ key, value string }{{"disable_ipv6", "1"}}
	if on {
		settings = []struct{ key, value string }{{"accept_ra", "0"}, {"accept_redirects", "0"}, {"disable_ipv6", "0"}}
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); errors.Is(err, fs.ErrNotExist) && !on {
		return nil // a kernel without IPv6
	}
	for _, s := range settings {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/"+s.key, []byte(s.value+"\n"), 0); err != nil {
			return fmt.Errorf("set %s of %s for IPv6: %w", s.key, link, err)
		}
	}
	return nil
}

// bridgeIPv6 gives the bridge its IPv6 address, or turns IPv6 off on it.
func bridgeIPv6(cfg Config, link netlink.Link) error {
	on := cfg.IPv6CIDR.IsValid()
	if on {
		found, err := hasAddressIPv6(cfg, link)
		if err != nil {
			return err
		}
		if !found {
			if err := refuseOverlap(unix.AF_INET6, "ipv6CIDR", cfg.IPv6CIDR); err != nil {
				return err
			}
		}
	}
	if err := SettleIPv6(cfg.Bridge, on); err != nil || !on {
		return err
	}
	want := netlink.Addr{IPNet: prefixOf(cfg.networkIPv6().gateway(), cfg.IPv6CIDR), Flags: unix.IFA_F_NODAD}
	if err := netlink.AddrAdd(link, &want); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("give bridge %s address %s: %w", cfg.Bridge, want.IPNet, err)
	}
	return nil
}

// prefixOf is an address with the length of its network.
func prefixOf(a netip.Addr, p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(p.Bits(), a.BitLen())}
}

// hasAddressIPv6 is hasAddress for the IPv6 address. Link-local ones are nobody's choice.
func hasAddressIPv6(cfg Config, link netlink.Link) (found bool, err error) {
	want := prefixOf(cfg.networkIPv6().gateway(), cfg.IPv6CIDR)
	addrs, err := netdump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, unix.AF_INET6) })
	if err != nil {
		return false, fmt.Errorf("IPv6 addresses of bridge %s: %w", cfg.Bridge, err)
	}
	for _, a := range addrs {
		switch {
		case a.IP.IsLinkLocalUnicast():
		case a.IPNet.String() != want.String():
			return false, fmt.Errorf("bridge %s has address %s, want %s: end its machines (Destroy) before changing ipv6CIDR", cfg.Bridge, a.IPNet,
				want)
		default:
			found = true
		}
	}
	return found, nil
}
