package tunnel

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/internal/stall"
)

// conn is a TCP connection below TLS, which its owner's conns can find and
// close.
type conn struct {
	net.Conn
	owner *conns
	once  sync.Once
	// broken is the first error of reading, if that came before Close. With
	// none, this end closed: it was told to, or heard no answer.
	broken atomic.Pointer[error]
	closed chan struct{} // by Close
	opened time.Time
	heard  atomic.Int64 // nanoseconds after opened, of the last byte
	// authority is the CAHash of who says that the other end is Kip, once that is known.
	authority atomic.Pointer[string]

	mu    sync.Mutex
	timer *time.Timer // of the next judgement, if there are any
	done  bool        // no more of them
}

// Read notes that something was heard.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		now := time.Now()
		c.heard.Store(int64(now.Sub(c.opened)))
		c.owner.heard.Store(now.UnixNano())
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.broken.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Close closes, and forgets, the connection.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.mu.Lock()
		c.done = true
		if c.timer != nil {
			c.timer.Stop()
		}
		c.mu.Unlock()
		c.owner.remove(c)
		close(c.closed)
	})
	return err
}

// judge closes the connection when nothing was heard on it for d, pings being sent,
// now and later. A time in which this process was late is not held against the other
// end: what it sent may be there, and not be read.
func (c *conn) judge(late *stall.Meter, d time.Duration) {
	since := c.opened.Add(time.Duration(c.heard.Load()))
	if onTime := late.OnTime(); onTime.After(since) {
		since = onTime
	}
	left := d - time.Since(since)
	if left <= 0 {
		_ = c.Close()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.timer = time.AfterFunc(left, func() { c.judge(late, d) })
	}
}

// cause is why a connection ended, by what reading from it said: nil if this
// end closed it.
func (c *conn) cause() error {
	if err := c.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// conns are the open connections of one end.
type conns struct {
	heard atomic.Int64 // Unix nanoseconds of the last byte from any of them

	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool
}

// add takes a connection in, or closes it if the owner has closed.
func (s *conns) add(nc net.Conn) (*conn, error) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		// What cannot be set only makes a dead connection live longer.
		_ = tcp.SetKeepAliveConfig(keepAlive)
		_ = limitUnsent(tcp)
	}
	c := &conn{
		Conn:   nc,
		owner:  s,
		closed: make(chan struct{}),
		opened: time.Now(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = nc.Close()
		return nil, ErrClosed
	}
	if s.open == nil {
		s.open = make(map[*conn]struct{})
	}
	s.open[c] = struct{}{}
	return c, nil
}

func (s *conns) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// closeAll closes those that are open now.
func (s *conns) closeAll() { s.closeBut(nil) }

// closeBut closes those that are open now, but for one.
func (s *conns) closeBut(one *conn) { s.closeIf(func(c *conn) bool { return c != one }) }

// closeIf closes those that are open now and of which this holds.
func (s *conns) closeIf(holds func(*conn) bool) {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.open))
	for c := range s.open {
		if holds(c) {
			all = append(all, c)
		}
	}
	s.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// close closes all, and those that would be added later.
func (s *conns) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.closeAll()
}

// lastHeard is the zero Time before anything was.
func (s *conns) lastHeard() time.Time {
	if n := s.heard.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// gate lets requests into a handler until it is closed, and closing waits for
// those within.
type gate struct {
	handler http.Handler
	mu      sync.RWMutex // read-held by each request
	closed  bool
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		http.Error(w, ErrClosed.Error(), http.StatusServiceUnavailable)
		return
	}
	g.handler.ServeHTTP(w, r)
}

// close returns when no request is in the handler, and none will be. The
// connections are closed before, so that the requests' contexts have ended.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// atDeadline runs f under a deadline on c and the end of ctx, either of which
// closes c, and takes the deadline away if f has done well.
func atDeadline(ctx context.Context, c net.Conn, d time.Duration, f func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	if err := f(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return c.SetDeadline(time.Time{})
}
