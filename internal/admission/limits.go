package admission

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
)

// source is where questions come from, as far as it can be told apart: who has one IPv6
// address has its network of 64 bits.
type source netip.Prefix

func sourceOf(address string) source {
	from, err := netip.ParseAddrPort(address)
	if err != nil {
		return source{}
	}
	ip := from.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil { // no address at all
		return source{}
	}
	return source(p)
}

// places are for bodies, at once: of one source, and of all.
type places struct {
	all *semaphore.Weighted
	mu  sync.Mutex
	of  map[source]*place // of those that have one, or wait
}

type place struct {
	own   *semaphore.Weighted
	users int
}

func newPlaces() *places {
	return &places{all: semaphore.NewWeighted(bodiesAtOnce), of: map[source]*place{}}
}

// take waits for a place until ctx ends.
func (p *places) take(ctx context.Context, from source) (leave func(), err error) {
	p.mu.Lock()
	is := p.of[from]
	if is == nil {
		is = &place{own: semaphore.NewWeighted(bodiesOfOne)}
		p.of[from] = is
	}
	is.users++
	p.mu.Unlock()
	gone := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if is.users--; is.users == 0 {
			delete(p.of, from)
		}
	}
	if err := is.own.Acquire(ctx, 1); err != nil {
		gone()
		return nil, err
	}
	if err := p.all.Acquire(ctx, 1); err != nil {
		is.own.Release(1)
		gone()
		return nil, err
	}
	return func() {
		p.all.Release(1)
		is.own.Release(1)
		gone()
	}, nil
}

// fairListener accepts so many connections of one source, and of all. When those of all
// are too many, the oldest goes of the source that has the most: a flood from one address
// turns away itself.
type fairListener struct {
	net.Listener
	mu   sync.Mutex
	open map[source][]*openConn // oldest first
	all  int
}

type openConn struct {
	net.Conn
	leave func()
}

// Close closes the connection, and has it forgotten.
func (c *openConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// Accept implements net.Listener.
func (l *fairListener) Accept() (net.Conn, error) {
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
func (l *fairListener) enter(c net.Conn) (next, goes net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := sourceOf(c.RemoteAddr().String())
	if len(l.open[from]) == connectionsOfOne {
		return nil, c
	}
	if l.all == connectionLimit {
		var most []*openConn
		for _, of := range l.open {
			if len(of) > len(most) {
				most = of
			}
		}
		goes = most[0]
	}
	is := &openConn{Conn: c}
	is.leave = sync.OnceFunc(func() { l.leave(from, is) })
	l.open[from] = append(l.open[from], is)
	l.all++
	return is, goes
}

func (l *fairListener) leave(from source, is *openConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	l.open[from] = slices.DeleteFunc(l.open[from], func(c *openConn) bool { return c == is })
	if len(l.open[from]) == 0 {
		delete(l.open, from)
	}
}
