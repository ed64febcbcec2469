package machines

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

// leaseTime is how long a machine has its address before it asks again, as on EC2.
const leaseTime = time.Hour

// leases tells virtual machines their address by DHCP, as a VPC does. A machine has that of its
// instance, which its card's own address says.
type leases struct {
	bridge      string
	network     netip.Prefix
	gateway     netip.Addr
	nameservers []netip.Addr
	known       func(netip.Addr) bool // whether an instance has the address
	log         *slog.Logger
}

// answer is what is said to a message; nil for nothing.
func (l *leases) answer(m *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	kind := dhcpv4.MessageTypeOffer
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
	case dhcpv4.MessageTypeRequest:
		kind = dhcpv4.MessageTypeAck
	default:
		return nil, nil
	}
	address, ok := host.AddressOf(m.ClientHWAddr)
	if !ok || !l.network.Contains(address) || !l.known(address) {
		return nil, fmt.Errorf("no instance has the card %s", m.ClientHWAddr)
	}
	if wants := m.RequestedIPAddress(); kind == dhcpv4.MessageTypeAck && wants != nil && !wants.Equal(address.AsSlice()) {
		kind = dhcpv4.MessageTypeNak
	}
	return dhcpv4.NewReplyFromRequest(m,
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(address.AsSlice()),
		dhcpv4.WithServerIP(l.gateway.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.gateway.AsSlice())),
		dhcpv4.WithNetmask(net.CIDRMask(l.network.Bits(), 32)),
		dhcpv4.WithRouter(l.gateway.AsSlice()),
		dhcpv4.WithDNS(addresses(l.nameservers)...),
		dhcpv4.WithLeaseTime(uint32(leaseTime/time.Second)),
	)
}

func addresses(all []netip.Addr) (ips []net.IP) {
	for _, a := range all {
		ips = append(ips, a.AsSlice())
	}
	return ips
}

// serve answers on the bridge until ctx ends.
func (l *leases) serve(ctx context.Context) error {
	s, err := server4.NewServer(l.bridge, &net.UDPAddr{Port: dhcpv4.ServerPort}, func(conn net.PacketConn, _ net.Addr, m *dhcpv4.DHCPv4) {
		reply, err := l.answer(m)
		if err != nil {
			l.log.Warn("answer DHCP", "bridge", l.bridge, "err", err)
		}
		if reply == nil {
			return
		}
		// To all of the link: who asks has no address yet.
		if _, err := conn.WriteTo(reply.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort}); err != nil && ctx.Err() == nil {
			l.log.Warn("answer DHCP", "bridge", l.bridge, "err", err)
		}
	})
	if err != nil {
		return fmt.Errorf("serve DHCP on bridge %s: %w", l.bridge, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(); ctx.Err() == nil {
		return fmt.Errorf("serve DHCP on bridge %s: %w", l.bridge, errors.Join(err, s.Close()))
	}
	return nil
}
