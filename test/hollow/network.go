package hollow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// backlog is how many connections wait to be accepted at one address. The agent
// accepts at once, so that is rarely more than one.
const backlog = 16

// exchange hands connections to the listener of the address that they are for.
type exchange struct {
	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
}

// listener is a net.Listener of an exchange.
type listener struct {
	exchange *exchange
	addr     netip.AddrPort
	conns    chan net.Conn
	done     chan struct{}
	once     sync.Once
}

var _ net.Listener = (*listener)(nil)

// Listen returns the listener of an address, which must not have one yet.
func (x *exchange) Listen(addr netip.AddrPort) (net.Listener, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.listeners == nil {
		x.listeners = map[netip.AddrPort]*listener{}
	}
	if x.listeners[addr] != nil {
		return nil, fmt.Errorf("listen at %s: %w", addr, syscall.EADDRINUSE)
	}
	l := &listener{
		exchange: x,
		addr:     addr,
		conns:    make(chan net.Conn, backlog),
		done:     make(chan struct{}),
	}
	x.listeners[addr] = l
	return l, nil
}

// give hands a connection on, or says that nobody takes it.
func (x *exchange) give(addr netip.AddrPort, c net.Conn) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.listeners[addr]; l != nil {
		select {
		case l.conns <- c:
			return nil
		default: // its backlog is full
		}
	}
	return fmt.Errorf("connect to %s: %w", addr, syscall.ECONNREFUSED)
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. What was not accepted is closed.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.exchange.mu.Lock()
		delete(l.exchange.listeners, l.addr)
		l.exchange.mu.Unlock()
		close(l.done)
		for {
			select {
			case c := <-l.conns:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

// Shared is one TCP listener for the cells of many addresses: a file descriptor
// for all instead of one for each. A connection to an address that no cell listens
// at is reset after it was accepted, where the kernel would have refused it; that
// costs Kip more, while it waits for machines to boot.
type Shared struct {
	exchange
	l    net.Listener
	done chan struct{}
}

// Share listens at addr, whose host must be unspecified (0.0.0.0) to serve more
// than one address.
func Share(addr netip.AddrPort) (*Shared, error) {
	l, err := net.Listen("tcp4", addr.String())
	if err != nil {
		return nil, fmt.Errorf("listen for all hollow cells: %w", err)
	}
	s := &Shared{l: l, done: make(chan struct{})}
	go s.run()
	return s, nil
}

// Port is where it listens; of use when the port of Share was 0.
func (s *Shared) Port() uint16 { return s.l.Addr().(*net.TCPAddr).AddrPort().Port() }

func (s *Shared) run() {
	defer close(s.done)
	for {
		nc, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Such as too many open files: one that is closed makes room.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		local := nc.LocalAddr().(*net.TCPAddr).AddrPort()
		if err := s.give(netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), nc); err != nil {
			_ = nc.(*net.TCPConn).SetLinger(0) // a reset, not an end in order
			_ = nc.Close()
		}
	}
}

// Close stops accepting.
func (s *Shared) Close() error {
	err := s.l.Close()
	<-s.done
	return err
}

// Network is a network within this process: no sockets, no limits on their number,
// and of use in a bubble of testing/synctest. Its Listen is a Config's, its Dial a
// tunnel.DialerConfig's. The zero value is ready.
type Network struct{ exchange }

// Dial connects to whoever listens at addr.
func (n *Network) Dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a, b := newFlow(), newFlow()
	if err := n.give(addr, &pipe{in: a, out: b, local: addr}); err != nil {
		return nil, err
	}
	return &pipe{in: b, out: a, remote: addr}, nil
}

// pipe is one end of a connection of a Network.
type pipe struct {
	in, out       *flow
	local, remote netip.AddrPort // one is unset: the end that dialled has no name
}

var _ net.Conn = (*pipe)(nil)

func (p *pipe) Read(b []byte) (int, error)  { return p.in.read(b) }
func (p *pipe) Write(b []byte) (int, error) { return p.out.write(b) }
func (p *pipe) LocalAddr() net.Addr         { return net.TCPAddrFromAddrPort(p.local) }
func (p *pipe) RemoteAddr() net.Addr        { return net.TCPAddrFromAddrPort(p.remote) }

func (p *pipe) Close() error {
	p.in.close(true)
	p.out.close(false)
	return nil
}

func (p *pipe) SetDeadline(t time.Time) error {
	p.in.reads.set(p.in, t)
	p.out.writes.set(p.out, t)
	return nil
}

func (p *pipe) SetReadDeadline(t time.Time) error {
	p.in.reads.set(p.in, t)
	return nil
}

func (p *pipe) SetWriteDeadline(t time.Time) error {
	p.out.writes.set(p.out, t)
	return nil
}

// window is how much of a flow is on its way before its writer waits.
const window = 256 << 10

// flow is one direction of a connection.
type flow struct {
	mu            sync.Mutex
	changed       sync.Cond
	data          []byte
	readerClosed  bool
	writerClosed  bool
	reads, writes deadline
}

func newFlow() *flow {
	f := &flow{}
	f.changed.L = &f.mu
	return f
}

func (f *flow) read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.readerClosed:
			return 0, net.ErrClosed
		case f.reads.passed:
			return 0, os.ErrDeadlineExceeded
		case len(f.data) > 0:
			n := copy(b, f.data)
			if f.data = f.data[n:]; len(f.data) == 0 {
				f.data = nil // an idle flow holds no buffer
			}
			f.changed.Broadcast()
			return n, nil
		case f.writerClosed:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		f.changed.Wait()
	}
}

func (f *flow) write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := 0
	for {
		switch {
		case f.writerClosed:
			return sent, net.ErrClosed
		case f.readerClosed:
			return sent, syscall.EPIPE
		case f.writes.passed:
			return sent, os.ErrDeadlineExceeded
		}
		if room := window - len(f.data); room > 0 {
			n := min(room, len(b)-sent)
			f.data = append(f.data, b[sent:sent+n]...)
			sent += n
			f.changed.Broadcast()
		}
		if sent == len(b) {
			return sent, nil
		}
		f.changed.Wait()
	}
}

func (f *flow) close(reader bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if reader {
		f.readerClosed, f.data = true, nil
		f.reads.stop()
	} else {
		f.writerClosed = true
		f.writes.stop()
	}
	f.changed.Broadcast()
}

// deadline of one side of a flow, guarded by the flow's mutex.
type deadline struct {
	passed bool
	timer  *time.Timer
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (d *deadline) set(f *flow, t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d.stop()
	d.passed = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		f.changed.Broadcast()
		return
	}
	var own *time.Timer
	own = time.AfterFunc(left, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if d.timer == own { // and not one that was set later
			d.passed = true
			f.changed.Broadcast()
		}
	})
	d.timer = own
}
