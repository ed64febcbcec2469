package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/server6"
	"github.com/insomniacslk/dhcp/iana"
)

var (
	hardware6 = net.HardwareAddr{2, 0, 0, 1, 2, 3}
	server6ID = &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 9, 9, 9}}
)

// against returns a client of a server on this host, whose answers to each message are made by
// answer, in the form of a whole reply that it may change; nil for none.
func against(t *testing.T, answer func(m, reply *dhcpv6.Message) *dhcpv6.Message) *Client6 {
	t.Helper()
	listen := func() net.PacketConn {
		c, err := net.ListenPacket("udp6", "[::1]:0")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	conn := listen()
	s, err := server6.NewServer("", nil, func(conn net.PacketConn, peer net.Addr, m dhcpv6.DHCPv6) {
		message := m.(*dhcpv6.Message)
		given := dhcpv6.WithIANA(dhcpv6.OptIAAddress{
			IPv6Addr:          net.ParseIP("2001:db8::5"),
			PreferredLifetime: 140 * time.Second,
			ValidLifetime:     450 * time.Second,
		})
		respond := dhcpv6.NewReplyFromMessage
		if message.MessageType == dhcpv6.MessageTypeSolicit {
			respond = dhcpv6.NewAdvertiseFromSolicit
		}
		reply, err := respond(message, dhcpv6.WithServerID(server6ID), given, dhcpv6.WithIAID(message.Options.OneIANA().IaId))
		if err != nil {
			t.Errorf("%s: %v", message.MessageType, err)
			return
		}
		if reply = answer(message, reply); reply != nil {
			_, _ = conn.WriteTo(reply.ToBytes(), peer)
		}
	}, server6.WithConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	c, err := newClient6(listen(), hardware6, conn.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = errors.Join(c.Close(), s.Close())
		<-served
	})
	return c
}

func TestAnIPv6AddressIsAskedForAndKept(t *testing.T) {
	asked := make(chan string, 10) // each is answered by a goroutine of its own
	c := against(t, func(m, reply *dhcpv6.Message) *dhcpv6.Message {
		asked <- m.MessageType.String()
		if id, ok := m.Options.ClientID().(*dhcpv6.DUIDLL); !ok || id.LinkLayerAddr.String() != hardware6.String() {
			t.Errorf("%s: the machine calls itself %s", m.MessageType, m.Options.ClientID())
		}
		if a := m.Options.OneIANA(); a == nil || a.IaId != [4]byte{0, 1, 2, 3} {
			t.Errorf("%s: its addresses are %v", m.MessageType, a)
		}
		return reply
	})
	l, err := c.Acquire(t.Context())
	if err != nil || l.Address != netip.MustParseAddr("2001:db8::5") || l.Renew != 70*time.Second {
		t.Fatalf("%+v, %v", l, err)
	}
	if again, err := c.Renew(t.Context(), l); err != nil || again.Address != l.Address || again.Renew != l.Renew {
		t.Errorf("again %+v, %v", again, err)
	}
	for _, want := range []string{"SOLICIT", "REQUEST", "RENEW"} {
		if got := <-asked; got != want {
			t.Errorf("it has asked %s, want %s", got, want)
		}
	}
	if len(asked) > 0 {
		t.Errorf("and %s", <-asked)
	}
}

func TestAnotherServerIsAskedForTheAddressWhereItsOwnIsGone(t *testing.T) {
	asked := make(chan string, 100)
	c := against(t, func(m, reply *dhcpv6.Message) *dhcpv6.Message {
		switch m.MessageType {
		case dhcpv6.MessageTypeRenew:
			return nil
		case dhcpv6.MessageTypeRebind:
			asked <- m.Options.OneIANA().Options.OneAddress().IPv6Addr.String()
			if m.Options.ServerID() != nil {
				t.Error("it asks one server alone")
			}
		}
		return reply
	})
	l, err := c.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
	defer cancel()
	if again, err := c.Renew(ctx, l); err != nil || again.Address != l.Address {
		t.Fatalf("%+v, %v", again, err)
	}
	if got := <-asked; got != "2001:db8::5" {
		t.Errorf("it has asked for %s", got)
	}
}

// FuzzReply6: whatever is on the link, it is an error or a lease that can be used.
func FuzzReply6(f *testing.F) {
	c := &Client6{hardware: hardware6}
	for _, a := range []string{"2001:db8::5", "ff02::1"} {
		m, err := dhcpv6.NewMessage(dhcpv6.WithServerID(server6ID), dhcpv6.WithClientID(c.id()), dhcpv6.WithIAID(c.association()),
			dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(a), PreferredLifetime: time.Minute, ValidLifetime: time.Hour}))
		if err != nil {
			f.Fatal(err)
		}
		m.MessageType = dhcpv6.MessageTypeReply
		f.Add(m.ToBytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := dhcpv6.MessageFromBytes(b)
		if err != nil {
			return
		}
		l, err := c.lease(m)
		if err != nil {
			return
		}
		if !l.Address.Is6() || l.Address.Is4In6() || !l.Address.IsGlobalUnicast() || l.Renew < 0 || l.server == nil {
			t.Errorf("%+v", l)
		}
	})
}

func TestAnIPv6AddressThatNoMachineCanHaveIsRefused(t *testing.T) {
	set := func(a string, valid time.Duration) func(*dhcpv6.Message) {
		return func(m *dhcpv6.Message) {
			one := m.Options.OneIANA().Options.OneAddress()
			one.IPv6Addr, one.ValidLifetime = net.ParseIP(a), valid
		}
	}
	for name, tc := range map[string]struct {
		lie  func(*dhcpv6.Message)
		want string
	}{
		"multicast":      {set("ff02::1", time.Hour), "has given ff02::1"},
		"loopback":       {set("::1", time.Hour), "has given ::1"},
		"link-local":     {set("fe80::1", time.Hour), "has given fe80::1"},
		"IPv4":           {set("10.0.0.1", time.Hour), "has given 10.0.0.1"},
		"none":           {set("::", time.Hour), "has given ::"},
		"no time":        {set("2001:db8::5", 0), "for 0s"},
		"no association": {func(m *dhcpv6.Message) { m.Options.Del(dhcpv6.OptionIANA) }, "has given no address"},
		"no address":     {func(m *dhcpv6.Message) { m.Options.OneIANA().Options.Del(dhcpv6.OptionIAAddr) }, "has given no address"},
		"no server":      {func(m *dhcpv6.Message) { m.Options.Del(dhcpv6.OptionServerID) }, "does not say who it is"},
		"a refusal": {func(m *dhcpv6.Message) {
			m.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNotOnLink})
		}, "refuses: NotOnLink"},
		"a refused address": {func(m *dhcpv6.Message) {
			m.Options.OneIANA().Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail})
		}, "refuses the address: NoAddrsAvail"},
	} {
		c := against(t, func(m, reply *dhcpv6.Message) *dhcpv6.Message {
			if m.MessageType == dhcpv6.MessageTypeRequest {
				tc.lie(reply)
			}
			return reply
		})
		if l, err := c.Acquire(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %+v, %v, want %q", name, l, err, tc.want)
		}
	}
}

func TestNobodyAnswersByDHCPv6(t *testing.T) {
	c := against(t, func(*dhcpv6.Message, *dhcpv6.Message) *dhcpv6.Message { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if l, err := c.Acquire(ctx); err == nil || !strings.Contains(err.Error(), "no answer of a DHCPv6 server") {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestWhatARouterHasToldIsReadOfTheKernel(t *testing.T) {
	attribute := func(kind uint16, value []byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
		return append(b, make([]byte, (4-len(b)%4)%4)...)
	}
	flags := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	const info, nested, inet6 = 12, 1 << 15, 1 // IFLA_PROTINFO, NLA_F_NESTED, IFLA_INET6_FLAGS
	for name, tc := range map[string]struct {
		attributes []byte
		want       bool
	}{
		"nothing":            {nil, false},
		"another":            {attribute(3, flags(0x40)), false},
		"ready":              {attribute(info|nested, attribute(inet6, flags(0x80000000))), false},
		"managed":            {attribute(info|nested, attribute(inet6, flags(0x80000050))), true},
		"managed, unflagged": {attribute(info, attribute(inet6, flags(0x40))), true},
		"cut":                {attribute(info, attribute(inet6, []byte{0x40})), false},
	} {
		if got, err := managed(tc.attributes); got != tc.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if is, err := Managed(lo.Index); is || err != nil {
		t.Errorf("of lo: %v, %v", is, err)
	}
}
