package sources

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Source is where somebody comes from, as far as it can be told apart: who has one IPv6
// address has its network of 64 bits.
type Source netip.Prefix

// Of returns the source of an address with a port; the zero one if it is none.
func Of(address string) Source {
	from, err := netip.ParseAddrPort(address)
	if err != nil {
		return Source{}
	}
	ip := from.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil { // no address at all
		return Source{}
	}
	return Source(p)
}

// Listener accepts so many connections of one source, and of all. When those of all
// are too many, the oldest goes of the source that has the most: a flood from one address
// turns away itself. Those that are proven do not count.
type Listener struct {
	net.Listener
	// OfOne bounds those of one source; 0 where only All bounds them.
	OfOne, All int

	mu   sync.Mutex
	open map[Source][]*Conn // oldest first
	all  int
}

// Conn is a connection that counts as long as it is open and not proven.
type Conn struct {
	net.Conn
	From  Source
	leave func()
}

// Proven has the connection count no more.
func (c *Conn) Proven() { c.leave() }

// Close closes the connection, and has it forgotten.
func (c *Conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// Accept implements net.Listener. What it returns is a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		next, goes := l.enter(c)
		if goes != nil {
			_ = goes.Close() // whoever it is comes again
		}
		if next != nil {
			return next, nil
		}
	}
}

// enter returns the connection as one of the open ones, nil if it is one too many of its
// source, and which one is to be closed.
func (l *Listener) enter(c net.Conn) (next, goes net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := Of(c.RemoteAddr().String())
	if l.OfOne > 0 && len(l.open[from]) == l.OfOne {
		return nil, c
	}
	if l.all == l.All {
		var most []*Conn
		for _, of := range l.open {
			if len(of) > len(most) {
				most = of
			}
		}
		goes = most[0]
	}
	if l.open == nil {
		l.open = map[Source][]*Conn{}
	}
	is := &Conn{Conn: c, From: from}
	is.leave = sync.OnceFunc(func() { l.left(is) })
	l.open[from] = append(l.open[from], is)
	l.all++
	return is, goes
}

func (l *Listener) left(is *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	l.open[is.From] = slices.DeleteFunc(l.open[is.From], func(c *Conn) bool { return c == is })
	if len(l.open[is.From]) == 0 {
		delete(l.open, is.From)
	}
}
