package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/server6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/dhcp"
)

// router is another machine of a link, in a network namespace of its own: it tells that addresses
// are given by DHCPv6, and gives one.
type router struct {
	t         *testing.T
	advertise net.PacketConn
	serve     *server6.Server
	served    chan error
}

// inNewNetwork has this thread be in a network namespace of its own until the test ends, with the
// card eth0, at whose other end is a router.
func inNewNetwork(t *testing.T) (*router, netlink.Link) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	there, err := netns.New()
	if err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	here, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(netns.Set(before), here.Close(), there.Close(), before.Close()); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "router", PeerNamespace: netlink.NsFd(there)}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	card, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetUp(card), netns.Set(there)); err != nil {
		t.Fatal(err)
	}
	r := newRouter(t)
	if err := netns.Set(here); err != nil {
		t.Fatal(err)
	}
	return r, card
}

// newRouter opens a router at the other end of the card, in whose namespace this thread is.
func newRouter(t *testing.T) *router {
	t.Helper()
	link, err := netlink.LinkByName("router")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	// Its link-local address is of use once it is known that nobody else has it.
	r := &router{t: t, served: make(chan error, 1)}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		ip, err := dhcpv6.GetLinkLocalAddr("router")
		if err == nil {
			r.advertise, err = net.ListenPacket("ip6:ipv6-icmp", ip.String()+"%router")
		}
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if err := ipv6.NewPacketConn(r.advertise).SetMulticastHopLimit(255); err != nil { // or it is none (RFC 4861, 6.1.2)
		t.Fatal(err)
	}
	server := &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: link.Attrs().HardwareAddr}
	r.serve, err = server6.NewServer("router", nil, func(conn net.PacketConn, peer net.Addr, m dhcpv6.DHCPv6) {
		message := m.(*dhcpv6.Message)
		respond := dhcpv6.NewReplyFromMessage
		if message.MessageType == dhcpv6.MessageTypeSolicit {
			respond = dhcpv6.NewAdvertiseFromSolicit
		}
		reply, err := respond(message, dhcpv6.WithServerID(server), dhcpv6.WithIAID(message.Options.OneIANA().IaId),
			dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("2001:db8::5"), PreferredLifetime: time.Hour, ValidLifetime: time.Hour}))
		if err == nil {
			_, err = conn.WriteTo(reply.ToBytes(), peer)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { r.served <- r.serve.Serve() }()
	t.Cleanup(func() {
		_ = errors.Join(r.advertise.Close(), r.serve.Close())
		<-r.served
	})
	return r
}

// tell sends a router advertisement to all of the link.
func (r *router) tell(flags byte) {
	const advertisement, hops, halfAnHour = 134, 64, 1800
	message := []byte{advertisement, 0, 0, 0, hops, flags, halfAnHour >> 8, halfAnHour & 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
	if _, err := r.advertise.WriteTo(message, &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: "router"}); err != nil {
		r.t.Error(err)
	}
}

// until ends a context when what is written has this.
type until struct {
	bytes.Buffer
	text string
	end  context.CancelFunc
}

func (u *until) Write(b []byte) (int, error) {
	n, err := u.Buffer.Write(b)
	if bytes.Contains(u.Bytes(), []byte(u.text)) {
		u.end()
	}
	return n, err
}

func TestAnIPv6AddressIsTakenWhereARouterSaysThatThereAreSome(t *testing.T) {
	r, card := inNewNetwork(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	said := &until{text: "eth0 has 2001:db8::5, too", end: cancel}
	n := &network{console: console.New(said), link: card}

	const managed = 0x80
	told := make(chan struct{})
	go func() {
		defer close(told)
		for flags := byte(0); ctx.Err() == nil; flags = managed { // at first that there is none
			r.tell(flags)
			time.Sleep(300 * time.Millisecond)
		}
	}()
	n.keep6(ctx)
	<-told
	all, err := netlink.AddrList(card, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.IPNet.String() == "2001:db8::5/128" && a.Flags&unix.IFA_F_PERMANENT != 0 {
			return
		}
	}
	t.Errorf("the card has %v; said %q", all, said.String())
}

func TestNoIPv6AddressIsAskedForWhereNoRouterSaysThatThereAreSome(t *testing.T) {
	r, card := inNewNetwork(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	said := &until{text: "DHCPv6", end: cancel}
	r.tell(0)
	(&network{console: console.New(said), link: card}).keep6(ctx)
	if said.Len() > 0 {
		t.Errorf("said %q", said.String())
	}
}

func TestAnIPv6AddressIsAskedForAgainAndNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		first := dhcp.Lease6{Address: netip.MustParseAddr("2001:db8::5"), Renew: 10 * time.Minute}
		other := dhcp.Lease6{Address: netip.MustParseAddr("2001:db8::6"), Renew: 10 * time.Minute}
		hasty, last := first, first
		hasty.Renew, last.Renew = time.Millisecond, 0
		silent := errors.New("no answer")
		answers := []struct {
			lease dhcp.Lease6
			err   error
			after time.Duration // the last one
		}{
			{err: silent, after: 3 * routerPoll}, {first, nil, renewRetry}, {other, nil, first.Renew}, {err: silent, after: renewRetry},
			{err: silent, after: renewRetry}, {hasty, nil, renewRetry}, {first, nil, renewRetry}, {last, nil, first.Renew},
		}
		var said []string
		began, looks, asked := time.Now(), 0, 0
		keeper6{
			managed: func() (bool, error) { looks++; return looks > 2, nil },
			lease: func(_ context.Context, old dhcp.Lease6) (dhcp.Lease6, error) {
				if asked == len(answers) {
					cancel()
					return dhcp.Lease6{}, ctx.Err()
				}
				a := answers[asked]
				if waited := time.Since(began); waited != a.after {
					t.Errorf("question %d came after %v, want %v", asked, waited, a.after)
				}
				if want := asked > 1; old.Address.IsValid() != want || want && old.Address != first.Address {
					t.Errorf("question %d is for %v", asked, old.Address)
				}
				asked, began = asked+1, time.Now()
				return a.lease, a.err
			},
			say: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) },
		}.keep(ctx)
		if asked != len(answers) || ctx.Err() != nil {
			t.Errorf("it has asked %d times, want %d", asked, len(answers))
		}
		cancel()
		want := []string{"DHCPv6: no answer", "the network wants 2001:db8::5 to become 2001:db8::6, which stays as it is", "DHCPv6: no answer"}
		if !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
	})
}
