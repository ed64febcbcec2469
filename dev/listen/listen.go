// Package listen owns the joining of several listeners into one, for servers
// that take only one listener but must be reached on more than one address and
// never on all of them. It opens no socket but those that it is asked for.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// On listens on the preferred port of addr, or on any free one when that port
// is taken.
func On(ctx context.Context, addr netip.Addr, preferred uint16) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(addr, preferred).String())
	if errors.Is(err, syscall.EADDRINUSE) && preferred != 0 {
		l, err = lc.Listen(ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l, nil
}

// attempts at finding a port that is free on several addresses.
const attempts = 16

// OnAll listens on one port of all addresses, the first of which chooses it: the
// preferred one, or another that is free on all of them when that is taken on
// one.
func OnAll(ctx context.Context, preferred uint16, addrs ...netip.Addr) ([]net.Listener, error) {
	var last error
	for range attempts {
		var lc net.ListenConfig
		var all []net.Listener
		port := preferred
		for _, addr := range addrs {
			l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
			if err != nil {
				last = fmt.Errorf("listen on %s: %w", addr, err)
				break
			}
			all = append(all, l)
			port = l.Addr().(*net.TCPAddr).AddrPort().Port()
		}
		if len(all) == len(addrs) {
			return all, nil
		}
		for _, l := range all {
			last = errors.Join(last, l.Close())
		}
		if !errors.Is(last, syscall.EADDRINUSE) {
			break
		}
		preferred = 0
	}
	return nil, last
}

// Joined accepts what any of its listeners accepts. Its address is that of the
// first.
type Joined struct {
	listeners []net.Listener
	accepted  chan result
	closed    chan struct{}
	close     sync.Once
	running   sync.WaitGroup
}

var _ net.Listener = (*Joined)(nil)

type result struct {
	conn net.Conn
	err  error
}

// Join takes over the listeners: closing the result closes them.
func Join(first net.Listener, more ...net.Listener) *Joined {
	j := &Joined{
		listeners: append([]net.Listener{first}, more...),
		accepted:  make(chan result),
		closed:    make(chan struct{}),
	}
	for _, l := range j.listeners {
		j.running.Add(1)
		go j.accept(l)
	}
	return j
}

func (j *Joined) accept(l net.Listener) {
	defer j.running.Done()
	for {
		conn, err := l.Accept()
		select {
		case j.accepted <- result{conn, err}:
		case <-j.closed:
			if conn != nil {
				conn.Close()
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// Accept implements net.Listener.
func (j *Joined) Accept() (net.Conn, error) {
	select {
	case r := <-j.accepted:
		return r.conn, r.err
	case <-j.closed:
		return nil, net.ErrClosed
	}
}

// Close closes every listener and returns when nothing is accepted any more.
func (j *Joined) Close() error {
	var errs []error
	j.close.Do(func() {
		close(j.closed)
		for _, l := range j.listeners {
			errs = append(errs, l.Close())
		}
		j.running.Wait()
	})
	return errors.Join(errs...)
}

// Addr implements net.Listener: the address of the first.
func (j *Joined) Addr() net.Addr { return j.listeners[0].Addr() }
