package hardware

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/elotl/kip/internal/cloud/host"
)

func TestAMachineIsToldTheAddressOfItsInstance(t *testing.T) {
	instance := netip.MustParseAddr("10.5.0.7")
	l := Leases{
		Network:     netip.MustParsePrefix("10.5.0.0/16"),
		Gateway:     netip.MustParseAddr("10.5.0.1"),
		Nameservers: []netip.Addr{netip.MustParseAddr("10.5.0.2")},
		Known:       func(a netip.Addr) bool { return a == instance || a.String() == "10.6.0.7" },
	}
	card := host.HardwareAddr(instance)
	wants := func(ip string) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(ip)))
	}
	for what, tc := range map[string]struct {
		kind dhcpv4.MessageType
		card net.HardwareAddr
		with []dhcpv4.Modifier
		want dhcpv4.MessageType // that of no message where there is no answer
		fail bool
	}{
		"discover":          {dhcpv4.MessageTypeDiscover, card, nil, dhcpv4.MessageTypeOffer, false},
		"request":           {dhcpv4.MessageTypeRequest, card, []dhcpv4.Modifier{wants("10.5.0.7")}, dhcpv4.MessageTypeAck, false},
		"renewal":           {dhcpv4.MessageTypeRequest, card, nil, dhcpv4.MessageTypeAck, false},
		"another's address": {dhcpv4.MessageTypeRequest, card, []dhcpv4.Modifier{wants("10.5.0.8")}, dhcpv4.MessageTypeNak, false},
		"release":           {dhcpv4.MessageTypeRelease, card, nil, dhcpv4.MessageTypeNone, false},
		"no instance's":     {dhcpv4.MessageTypeDiscover, host.HardwareAddr(instance.Next()), nil, dhcpv4.MessageTypeNone, true},
		"another network's": {dhcpv4.MessageTypeDiscover, host.HardwareAddr(netip.MustParseAddr("10.6.0.7")), nil, dhcpv4.MessageTypeNone, true},
		"another kind's":    {dhcpv4.MessageTypeDiscover, net.HardwareAddr{2, 0, 10, 5, 0, 7}, nil, dhcpv4.MessageTypeNone, true},
	} {
		m, err := dhcpv4.New(append(tc.with, dhcpv4.WithMessageType(tc.kind), dhcpv4.WithHwAddr(tc.card))...)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := l.answer(m)
		if (err != nil) != tc.fail {
			t.Errorf("%s: %v", what, err)
		}
		if reply == nil {
			if tc.want != dhcpv4.MessageTypeNone {
				t.Errorf("%s: no answer, want %s", what, tc.want)
			}
			continue
		}
		if got := reply.MessageType(); got != tc.want {
			t.Errorf("%s: %s, want %s", what, got, tc.want)
		}
		ones, _ := reply.SubnetMask().Size()
		if reply.YourIPAddr.String() != "10.5.0.7" || ones != 16 || len(reply.Router()) != 1 || reply.Router()[0].String() != "10.5.0.1" ||
			len(reply.DNS()) != 1 || reply.DNS()[0].String() != "10.5.0.2" || reply.IPAddressLeaseTime(0) != leaseTime {
			t.Errorf("%s: %s", what, reply.Summary())
		}
	}
}
