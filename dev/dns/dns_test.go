package dns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

var (
	address   = netip.MustParseAddr("10.110.0.1")
	clusterIP = netip.MustParseAddr("10.96.0.10")
)

func TestNamesOutsideTheClusterAreNeverAskedOfOurselves(t *testing.T) {
	for name, c := range map[string]struct {
		resolv string
		want   []string
	}{
		"none":        {"", nil},
		"comments":    {"# nameserver 192.0.2.1\nsearch example\noptions ndots:5\n", nil},
		"ours":        {"nameserver 10.110.0.1\nnameserver 10.96.0.10\nnameserver 192.0.2.1\n", []string{"192.0.2.1:53"}},
		"local, IPv6": {"nameserver 127.0.0.53\nnameserver fd00::1\n", []string{"127.0.0.53:53", "[fd00::1]:53"}},
		"this host":   {"nameserver 0.0.0.0\n", []string{"127.0.0.1:53"}},
		"three count": {"nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n",
			[]string{"192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"}},
		"what is no server": {"nameserver dns.example\nnameserver\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range nameservers(c.resolv, address, clusterIP) {
				got = append(got, s.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestTheCorefileForwardsOnlyWhereThereIsAServer(t *testing.T) {
	without := corefile(address, "/state/a b/kubeconfig", nil)
	for _, want := range []string{".:53 {\n\tbind 10.110.0.1\n", "ready 10.110.0.1:8181\n", `kubeconfig "/state/a b/kubeconfig"`,
		"rcode NXDOMAIN", "disable success cluster.local"} {
		if !strings.Contains(without, want) {
			t.Errorf("no %q in\n%s", want, without)
		}
	}
	if strings.Contains(without, "forward") || strings.Contains(without, "loop") {
		t.Errorf("it forwards to nobody:\n%s", without)
	}
	with := corefile(address, "/kubeconfig", []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"),
		netip.MustParseAddrPort("[fd00::1]:53")})
	if !strings.Contains(with, "forward . 192.0.2.1:53 [fd00::1]:53 {") || !strings.Contains(with, "\tloop\n") ||
		strings.Contains(with, "NXDOMAIN") {
		t.Errorf("%s", with)
	}
}

func TestTheServiceHasTheTenthAddress(t *testing.T) {
	if ip, err := ClusterIP(netip.MustParsePrefix("10.96.0.0/16")); err != nil || ip != clusterIP {
		t.Errorf("%v, %v", ip, err)
	}
	if _, err := ClusterIP(netip.MustParsePrefix("10.96.0.0/29")); err == nil || !strings.Contains(err.Error(), "10.96.0.0/29") {
		t.Errorf("error %v", err)
	}
}

func TestAServerThatDoesNotAnswerIsLeftOut(t *testing.T) {
	serve := func(answer bool) netip.AddrPort {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		t.Cleanup(func() { conn.Close(); <-done })
		go func() {
			defer close(done)
			packet := make([]byte, 512)
			for {
				n, from, err := conn.ReadFrom(packet)
				if err != nil {
					return
				}
				var query dnsmessage.Parser
				header, err := query.Start(packet[:n])
				if err != nil || !answer {
					continue
				}
				refused, err := (&dnsmessage.Message{Header: dnsmessage.Header{ID: header.ID, Response: true, RCode: dnsmessage.RCodeRefused}}).Pack()
				if err == nil {
					_, _ = conn.WriteTo(refused, from)
				}
			}
		}()
		return conn.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	silent, good := serve(false), serve(true)
	if got := answering(context.Background(), []netip.AddrPort{silent, good}); !slices.Equal(got, []netip.AddrPort{good}) {
		t.Errorf("%v, want %v", got, good)
	}
}
