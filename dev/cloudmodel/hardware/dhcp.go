package hardware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"

	"github.com/elotl/kip/internal/cloud/host"
)

// leaseTime is how long a machine has its address before it asks again.
const leaseTime = time.Hour

// Leases tells virtual machines their address by DHCP, as a cloud's network does. A machine has that of its
// instance, which its card's own address says.
type Leases struct {
	Bridge      string
	Network     netip.Prefix
	Gateway     netip.Addr
	Nameservers []netip.Addr
	Known       func(netip.Addr) bool // whether an instance has the address
	Log         *slog.Logger
}

// answer is what is said to a message; nil for nothing.
func (l *Leases) answer(m *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	kind := dhcpv4.MessageTypeOffer
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
	case dhcpv4.MessageTypeRequest:
		kind = dhcpv4.MessageTypeAck
	default:
		return nil, nil
	}
	address, ok := host.AddressOf(m.ClientHWAddr)
	if !ok || !l.Network.Contains(address) || !l.Known(address) {
		return nil, fmt.Errorf("no instance has the card %s", m.ClientHWAddr)
	}
	if wants := m.RequestedIPAddress(); kind == dhcpv4.MessageTypeAck && wants != nil && !wants.Equal(address.AsSlice()) {
		kind = dhcpv4.MessageTypeNak
	}
	return dhcpv4.NewReplyFromRequest(m,
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(address.AsSlice()),
		dhcpv4.WithServerIP(l.Gateway.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.Gateway.AsSlice())),
		dhcpv4.WithNetmask(net.CIDRMask(l.Network.Bits(), 32)),
		dhcpv4.WithRouter(l.Gateway.AsSlice()),
		dhcpv4.WithDNS(addresses(l.Nameservers)...),
		dhcpv4.WithLeaseTime(uint32(leaseTime/time.Second)),
	)
}

func addresses(all []netip.Addr) (ips []net.IP) {
	for _, a := range all {
		ips = append(ips, a.AsSlice())
	}
	return ips
}

// Serve answers on the bridge until ctx ends.
func (l *Leases) Serve(ctx context.Context) error {
	s, err := server4.NewServer(l.Bridge, &net.UDPAddr{Port: dhcpv4.ServerPort}, func(conn net.PacketConn, _ net.Addr, m *dhcpv4.DHCPv4) {
		reply, err := l.answer(m)
		if err != nil {
			l.Log.Warn("answer DHCP", "bridge", l.Bridge, "err", err)
		}
		if reply == nil {
			return
		}
		// To all of the link: who asks has no address yet.
		if _, err := conn.WriteTo(reply.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort}); err != nil && ctx.Err() == nil {
			l.Log.Warn("answer DHCP", "bridge", l.Bridge, "err", err)
		}
	})
	if err != nil {
		return fmt.Errorf("serve DHCP on bridge %s: %w", l.Bridge, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(); ctx.Err() == nil {
		return fmt.Errorf("serve DHCP on bridge %s: %w", l.Bridge, errors.Join(err, s.Close()))
	}
	return nil
}
