package hollow

import (
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// reach is how a machine can be reached.
type reach int32

const (
	open reach = iota
	refusing
	silent
)

// port is the listener of a cell's agent, with a network that can be cut.
type port struct {
	listen func() (net.Listener, error)

	// isSilent is p.reach == silent, for those who only need that.
	isSilent atomic.Bool

	mu      sync.Mutex
	reach   reach
	l       net.Listener // nil while refusing
	conns   map[*conn]struct{}
	closed  bool
	changed chan struct{} // closed, and replaced, when one of the above changes
}

var _ net.Listener = (*port)(nil)

func newPort(listen func() (net.Listener, error), to reach) (*port, error) {
	p := &port{
		listen:  listen,
		reach:   refusing,
		conns:   map[*conn]struct{}{},
		changed: make(chan struct{}),
	}
	if err := p.set(to); err != nil {
		return nil, err
	}
	return p, nil
}

// set makes the machine reachable in another way.
func (p *port) set(to reach) error {
	resumed, err := p.setReach(to)
	for _, c := range resumed {
		c.flush()
	}
	return err
}

// setReach returns the connections that were silent and are no longer.
func (p *port) setReach(to reach) (resumed []*conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil
	}
	if to == refusing {
		p.dropLocked()
	} else if p.l == nil {
		l, err := p.listen()
		if err != nil {
			return nil, err
		}
		p.l = l
	}
	if p.reach == silent && to == open {
		resumed = slices.Collect(maps.Keys(p.conns))
	}
	p.reach = to
	p.isSilent.Store(to == silent)
	p.signalLocked()
	return resumed, nil
}

// dropLocked closes the listener and resets all connections.
func (p *port) dropLocked() {
	if p.l != nil {
		_ = p.l.Close()
		p.l = nil
	}
	for c := range p.conns {
		c.reset()
	}
	clear(p.conns)
}

func (p *port) signalLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Accept implements net.Listener. It survives times when the port is closed.
func (p *port) Accept() (net.Conn, error) {
	for {
		p.mu.Lock()
		l, changed, closed := p.l, p.changed, p.closed
		p.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		if l == nil {
			<-changed
			continue
		}
		nc, err := l.Accept()
		if err == nil {
			if c := p.take(nc, l); c != nil {
				return c, nil
			}
			continue
		}
		if !errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		// By set or Close: the next round tells.
	}
}

// take returns nil if the port was closed meanwhile.
func (p *port) take(nc net.Conn, from net.Listener) *conn {
	c := &conn{Conn: nc, port: p, closed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l != from {
		c.reset()
		return nil
	}
	p.conns[c] = struct{}{}
	return c
}

// Close implements net.Listener. The connections are their users'.
func (p *port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var err error
	if p.l != nil {
		err = p.l.Close()
		p.l = nil
	}
	p.signalLocked()
	return err
}

// Addr implements net.Listener.
func (p *port) Addr() net.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l == nil {
		return &net.TCPAddr{}
	}
	return p.l.Addr()
}

// conn is a connection that says nothing and hears nothing while its machine is
// silent.
type conn struct {
	net.Conn
	port   *port
	once   sync.Once
	closed chan struct{}

	mu   sync.Mutex // orders writes
	held []byte     // what was written while silent
}

// Read returns what was read while the network was cut when that is over.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.await()
	return n, err
}

// Write does not wait while the network is cut, as long as a socket's buffer would
// have room.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	for c.port.isSilent.Load() {
		if len(c.held)+len(b) <= window {
			c.held = append(c.held, b...)
			c.mu.Unlock()
			return len(b), nil
		}
		c.mu.Unlock()
		c.await()
		select {
		case <-c.closed:
			return 0, net.ErrClosed
		default:
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	if err := c.flushLocked(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// flush sends what was written while the network was cut.
func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.flushLocked() // a connection that has broken says so when it is used
}

func (c *conn) flushLocked() error {
	if len(c.held) == 0 || c.port.isSilent.Load() {
		return nil
	}
	_, err := c.Conn.Write(c.held)
	c.held = nil
	return err
}

// await returns when the machine is not silent, or the connection closed.
func (c *conn) await() {
	for c.port.isSilent.Load() {
		c.port.mu.Lock()
		changed, cut := c.port.changed, c.port.reach == silent
		c.port.mu.Unlock()
		if !cut {
			return
		}
		select {
		case <-changed:
		case <-c.closed:
			return
		}
	}
}

func (c *conn) Close() error {
	c.port.mu.Lock()
	delete(c.port.conns, c)
	c.port.mu.Unlock()
	return c.close()
}

func (c *conn) close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// reset closes at once, and tells the other end that it was not in order.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // what cannot be set only makes it an ordinary end
	}
	_ = c.close()
}
