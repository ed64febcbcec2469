package sources

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestSourcesAreToldApart(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1:1", "10.0.0.1:2", true},
		{"10.0.0.1:1", "[::ffff:10.0.0.1]:2", true},
		{"10.0.0.1:1", "10.0.0.2:1", false},
		{"[2001:db8::1]:1", "[2001:db8::ffff%eth0]:1", true},
		{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		{"pipe", "", true},
	} {
		if got := Of(c.a) == Of(c.b); got != c.same {
			t.Errorf("%s and %s are one: %t", c.a, c.b, got)
		}
	}
	if strings.Contains(fmt.Sprint(netip.Prefix(Of("10.0.0.1:1"))), "invalid") {
		t.Error("an address is none")
	}
}

// pipes is a listener of connections that come from these addresses.
type pipes struct {
	net.Listener
	from []string
}

type pipe struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (p *pipe) RemoteAddr() net.Addr { return p.from }

func (p *pipe) Close() error {
	p.closed = true
	return nil
}

func (l *pipes) Accept() (net.Conn, error) {
	from := l.from[0]
	l.from = l.from[1:]
	return &pipe{from: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from + ":1"))}, nil
}

// Who has proven who it is does not count, however many connections it has.
func TestProvenConnectionsDoNotCount(t *testing.T) {
	l := &Listener{Listener: &pipes{from: slices.Repeat([]string{"10.0.0.1", "10.0.0.1", "10.0.0.2"}, 2)}, All: 3}
	var all []*Conn
	for range 6 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c.(*Conn))
		if len(all) <= 3 {
			all[len(all)-1].Proven()
		}
	}
	for i, c := range all {
		if c.Conn.(*pipe).closed {
			t.Errorf("connection %d was closed", i)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if l.all != 0 || len(l.open) != 0 {
		t.Errorf("%d connections count when all are closed, of %d sources", l.all, len(l.open))
	}
}
