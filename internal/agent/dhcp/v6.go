package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Lease6 is an address that a DHCPv6 server has given (RFC 8415).
type Lease6 struct {
	Address netip.Addr
	// Renew is after how long to ask for it again, half of its preferred lifetime where the
	// server does not say; 0 for never.
	Renew time.Duration

	server dhcpv6.DUID
}

// Client6 asks for one interface's IPv6 address. Whoever opens it closes it.
type Client6 struct {
	client   *nclient6.Client
	hardware net.HardwareAddr
}

// Open6 opens an interface, which is up and has its link-local address.
func Open6(name string, hardware net.HardwareAddr) (*Client6, error) {
	conn, err := nclient6.NewIPv6UDPConn(name, dhcpv6.DefaultClientPort)
	if err != nil {
		return nil, fmt.Errorf("open the DHCPv6 port of %s: %w", name, err)
	}
	servers := *nclient6.AllDHCPRelayAgentsAndServers
	servers.Zone = name
	return newClient6(conn, hardware, &servers)
}

func newClient6(conn net.PacketConn, hardware net.HardwareAddr, servers *net.UDPAddr) (*Client6, error) {
	c, err := nclient6.NewWithConn(conn, hardware, nclient6.WithBroadcastAddr(servers))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Client6{client: c, hardware: hardware}, nil
}

// Close ends the client.
func (c *Client6) Close() error { return c.client.Close() }

// id is by what servers know the machine: its card, as long as it lives.
func (c *Client6) id() dhcpv6.DUID {
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: c.hardware}
}

// association is what the addresses of the machine are called: the last bytes of its card.
func (c *Client6) association() (id [4]byte) {
	copy(id[:], c.hardware[max(0, len(c.hardware)-len(id)):])
	return id
}

// Acquire asks the servers of the link for an address, some times until ctx ends.
func (c *Client6) Acquire(ctx context.Context) (Lease6, error) {
	offer, err := c.client.Solicit(ctx, dhcpv6.WithClientID(c.id()), dhcpv6.WithIAID(c.association()))
	if err != nil {
		return Lease6{}, fmt.Errorf("no answer of a DHCPv6 server: %w", err)
	}
	reply, err := c.client.Request(ctx, offer)
	if err != nil {
		return Lease6{}, fmt.Errorf("no answer of the DHCPv6 server that has offered an address: %w", err)
	}
	return c.lease(reply)
}

// Renew asks the server of a lease for its address again and, where that does not answer in half
// of the time that ctx leaves, any server (RFC 8415, 18.2.4 and 18.2.5).
func (c *Client6) Renew(ctx context.Context, l Lease6) (Lease6, error) {
	first, cancel := ctx, func() {}
	if end, has := ctx.Deadline(); has {
		first, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	defer cancel()
	reply, err := c.again(first, l, dhcpv6.MessageTypeRenew, dhcpv6.WithServerID(l.server))
	if err != nil && ctx.Err() == nil {
		reply, err = c.again(ctx, l, dhcpv6.MessageTypeRebind)
	}
	if err != nil {
		return Lease6{}, fmt.Errorf("no answer of a DHCPv6 server that is asked again: %w", err)
	}
	return c.lease(reply)
}

// again asks for the address of a lease.
func (c *Client6) again(ctx context.Context, l Lease6, kind dhcpv6.MessageType, more ...dhcpv6.Modifier) (*dhcpv6.Message, error) {
	m, err := dhcpv6.NewMessage(append(more, dhcpv6.WithClientID(c.id()), dhcpv6.WithIAID(c.association()),
		dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: l.Address.AsSlice()}))...)
	if err != nil {
		return nil, err
	}
	m.MessageType = kind
	return c.client.SendAndRead(ctx, c.client.RemoteAddr(), m, nclient6.IsMessageType(dhcpv6.MessageTypeReply))
}

// lease reads what a server has given.
func (c *Client6) lease(reply *dhcpv6.Message) (Lease6, error) {
	if s := reply.Options.Status(); s != nil && s.StatusCode != iana.StatusSuccess {
		return Lease6{}, fmt.Errorf("the DHCPv6 server refuses: %s", s.StatusCode)
	}
	given := reply.Options.OneIANA()
	if given == nil {
		return Lease6{}, errors.New("the DHCPv6 server has given no address")
	}
	if s := given.Options.Status(); s != nil && s.StatusCode != iana.StatusSuccess {
		return Lease6{}, fmt.Errorf("the DHCPv6 server refuses the address: %s", s.StatusCode)
	}
	server := reply.Options.ServerID()
	one := given.Options.OneAddress()
	if one == nil || server == nil {
		return Lease6{}, errors.New("the DHCPv6 server has given no address, or does not say who it is")
	}
	a, ok := netip.AddrFromSlice(one.IPv6Addr)
	if !ok || !a.Is6() || a.Is4In6() || !a.IsGlobalUnicast() || one.ValidLifetime <= 0 {
		return Lease6{}, fmt.Errorf("the DHCPv6 server has given %s for %v, which no machine can have", one.IPv6Addr, one.ValidLifetime)
	}
	l := Lease6{Address: a, Renew: given.T1, server: server}
	if l.Renew <= 0 || l.Renew > one.ValidLifetime {
		l.Renew = one.PreferredLifetime / 2
	}
	return l, nil
}

// Managed reports whether a router has told an interface that its addresses are given by
// DHCPv6 (RFC 4861, 4.2: the flag M), as the kernel has heard it.
func Managed(index int) (bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_INET6))
	links, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return false, fmt.Errorf("ask what routers have told: %w", err)
	}
	for _, b := range links {
		if len(b) < unix.SizeofIfInfomsg || nl.DeserializeIfInfomsg(b).Index != int32(index) {
			continue
		}
		return managed(b[unix.SizeofIfInfomsg:])
	}
	return false, nil
}

// managed reads the attributes of an interface.
func managed(attributes []byte) (bool, error) {
	const inet6Flags, managedFlag = 1, 0x40 // IFLA_INET6_FLAGS, IF_RA_MANAGED of linux/if_link.h and net/if_inet6.h
	all, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return false, err
	}
	for _, a := range all {
		if a.Attr.Type&^unix.NLA_F_NESTED != unix.IFLA_PROTINFO {
			continue
		}
		inner, err := nl.ParseRouteAttr(a.Value)
		if err != nil {
			return false, err
		}
		for _, i := range inner {
			if i.Attr.Type == inet6Flags && len(i.Value) >= 4 {
				return nl.NativeEndian().Uint32(i.Value)&managedFlag != 0, nil
			}
		}
	}
	return false, nil
}
