package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/dhcp"
)

// told is what a hypervisor says of the machine's network, so that nobody has to be asked:
// on a link that machines share, a neighbour could answer. Its keys are those of QEMU's
// file opt/com.elotl.kip/network, JSON.
type told struct {
	// Hardware is the address of the card that this is of.
	Hardware string `json:"hardware"`
	Hostname string `json:"hostname"`
	// Addresses are one of IPv4, and perhaps one of IPv6; Gateways the same.
	Addresses   []netip.Prefix `json:"addresses"`
	Gateways    []netip.Addr   `json:"gateways"`
	Nameservers []netip.Addr   `json:"nameservers"`
}

// plan is what told means.
type plan struct {
	hardware net.HardwareAddr
	lease    dhcp.Lease
	// address and gateway are those of IPv6, or neither is valid.
	address netip.Prefix
	gateway netip.Addr
}

// readTold reads the document, and refuses one that cannot be brought into force.
func readTold(document []byte) (plan, error) {
	var t told
	d := json.NewDecoder(bytes.NewReader(document))
	if err := d.Decode(&t); err != nil {
		return plan{}, fmt.Errorf("the network that the hypervisor tells of: %w", err)
	}
	var p plan
	var err error
	if p.hardware, err = net.ParseMAC(t.Hardware); err != nil {
		return plan{}, fmt.Errorf("the network that the hypervisor tells of: hardware %q: want a card's address such as 0a:58:0a:6e:00:02",
			t.Hardware)
	}
	p.lease = dhcp.Lease{DNS: t.Nameservers, Hostname: t.Hostname}
	for _, a := range t.Addresses {
		switch {
		case a.Addr().Is4() && !p.lease.Address.IsValid():
			p.lease.Address = a
		case a.Addr().Is6() && !a.Addr().Is4In6() && !p.address.IsValid():
			p.address = a
		default:
			return plan{}, fmt.Errorf("the network that the hypervisor tells of: addresses %s: want one of each family at most", t.Addresses)
		}
	}
	if !p.lease.Address.IsValid() {
		return plan{}, fmt.Errorf("the network that the hypervisor tells of: addresses %s: want one of IPv4", t.Addresses)
	}
	for _, g := range t.Gateways {
		switch {
		case p.lease.Address.Contains(g) && len(p.lease.Routes) == 0:
			p.lease.Routes = []dhcp.Route{{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: g}}
		case p.address.IsValid() && p.address.Contains(g) && !p.gateway.IsValid():
			p.gateway = g
		default:
			return plan{}, fmt.Errorf("the network that the hypervisor tells of: gateway %s: want one within each of %s at most", g, t.Addresses)
		}
	}
	return p, nil
}

// obey brings what the hypervisor tells of the network into force.
func (n *network) obey(ctx context.Context, document []byte) error {
	p, err := readTold(document)
	if err != nil {
		return err
	}
	found, err := wait(ctx, func() ([]netlink.Link, error) { return cards("/sys/class/net") })
	if err != nil {
		return err
	}
	for _, l := range found {
		if bytes.Equal(l.Attrs().HardwareAddr, p.hardware) {
			n.link, n.lease = l, p.lease
		}
	}
	if n.link == nil {
		return fmt.Errorf("no network card has the address %s, of which the hypervisor tells", p.hardware)
	}
	name := n.link.Attrs().Name
	// A neighbour who says that he is a router is not believed: all is told.
	ipv6 := "net/ipv6/conf/" + name + "/"
	settings := []Setting{{Key: ipv6 + "accept_ra", Value: "0"}, {Key: ipv6 + "accept_redirects", Value: "0"}}
	if !p.address.IsValid() {
		settings = []Setting{{Key: ipv6 + "disable_ipv6", Value: "1"}}
	}
	if err := set("/proc/sys", settings); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(n.link); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	if !carrier("/sys/class/net", name) {
		n.console.Say("%s has no link, as if its cable were out", name)
	}
	if err := errors.Join(apply(n.link, p.lease), p.applyIPv6(n.link)); err != nil {
		return err
	}
	n.console.Say("%s has %s, as the hypervisor tells", name, p.lease.Address)
	return nil
}

// applyIPv6 brings the IPv6 half into force, if there is one.
func (p plan) applyIPv6(l netlink.Link) error {
	if !p.address.IsValid() {
		return nil
	}
	ip := net.IPNet{IP: p.address.Addr().AsSlice(), Mask: net.CIDRMask(p.address.Bits(), 128)}
	// The hypervisor has given it to nobody else.
	if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: &ip, Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("set the address %s: %w", p.address, err)
	}
	if !p.gateway.IsValid() {
		return nil
	}
	to := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &to, Gw: p.gateway.AsSlice()}); err != nil {
		return fmt.Errorf("set the route by %s: %w", p.gateway, err)
	}
	return nil
}
