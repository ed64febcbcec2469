package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"

	"github.com/elotl/kip/internal/agentapi"
)

// agentLink is a session's HTTP/2 connection for requests to the agent. It is
// dialled when there is a request and none, or none that takes it.
type agentLink struct {
	mu      sync.Mutex
	cc      *http2.ClientConn
	dialing *dialing // nil while nobody dials
	closed  bool     // nobody begins to dial any more
}

func (l *agentLink) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// dialing is one attempt that several requests wait for.
type dialing struct {
	done chan struct{}
	err  error // valid after done
}

// Conn sends requests to the agent's HTTP API, whatever host their URLs name. It
// waits for the session to be ready until the request's context ends, but at most
// ten seconds, and then fails with ErrNotConnected. A request with
// "Connection: Upgrade" gets a connection of its own, and its response, if that
// is 101, a Body that is an io.ReadWriteCloser, as httputil.ReverseProxy and
// others expect.
func (s *Session) Conn() agentapi.Conn {
	return roundTripFunc(func(req *http.Request) (*http.Response, error) {
		if err := s.waitReady(req.Context()); err != nil {
			closeBody(req)
			return nil, err
		}
		if httpguts.HeaderValuesContainsToken(req.Header["Connection"], "upgrade") {
			return s.upgrade(req)
		}
		cc, err := s.reserve(req.Context())
		if err != nil {
			closeBody(req)
			return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
		}
		return cc.RoundTrip(tunnelled(req))
	})
}

// Streams sends requests as Conn does, each on a connection of its own: whoever reads an answer as slowly as he likes
// holds up no other request, above all none of Kip's.
func (s *Session) Streams() agentapi.Conn {
	return roundTripFunc(func(req *http.Request) (*http.Response, error) {
		if err := s.waitReady(req.Context()); err != nil {
			closeBody(req)
			return nil, err
		}
		return s.upgrade(req)
	})
}

func (s *Session) waitReady(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	default:
	}
	t := time.NewTimer(s.dialer.limits.wait)
	defer t.Stop()
	select {
	case <-s.ready:
		return nil
	case <-t.C:
		return errors.Join(ErrNotConnected, s.LastError())
	case <-ctx.Done():
		return errors.Join(ErrNotConnected, context.Cause(ctx), s.LastError())
	case <-s.ctx.Done():
		return errors.Join(ErrNotConnected, context.Cause(s.ctx))
	}
}

// upgradesAtOnce is how many connections for requests of one cell are being made at the same time. Each may keep
// one of the handshakes of all for as long as it may last.
const upgradesAtOnce = 2

func (s *Session) placeOfRequest() place {
	return place{rank: rankRequest, stalling: s.stalling.Load() || s.requestsStall.Load()}
}

// upgrade sends one request, which may upgrade, by HTTP/1.1 on a connection of its own, that ends
// with the response's body.
func (s *Session) upgrade(req *http.Request) (*http.Response, error) {
	t := &http.Transport{
		DialTLSContext: func(_ context.Context, _, _ string) (net.Conn, error) {
			ctx := req.Context() // the transport's outlasts it, for a next request, and there is none
			if err := enter(ctx, s.upgrading); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
			}
			defer func() { <-s.upgrading }()
			tc, _, err := s.dial(ctx, protoHTTP1, s.placeOfRequest(), s.credentials(), s.verify)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
			}
			return tc, nil
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerHeader,
	}
	return t.RoundTrip(tunnelled(req))
}

// reserve returns the connection, with a place for one request in it.
func (s *Session) reserve(ctx context.Context) (*http2.ClientConn, error) {
	for {
		s.api.mu.Lock()
		// First, since a connection that was closed takes requests until its reader has noticed.
		if s.api.closed {
			defer s.api.mu.Unlock()
			return nil, context.Cause(s.ctx)
		}
		if s.api.cc != nil && s.api.cc.ReserveNewRequest() {
			defer s.api.mu.Unlock()
			return s.api.cc, nil
		}
		d := s.api.dialing
		if d == nil {
			d = &dialing{done: make(chan struct{})}
			s.api.dialing = d
			s.dials.Go(func() { s.dialAgent(d) })
		}
		s.api.mu.Unlock()
		select {
		case <-d.done:
			if d.err != nil {
				return nil, d.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// dialAgent is bound to the session, not to the request that caused it, since
// others wait for it too. One that takes no more requests is not closed: those
// that it has end first.
func (s *Session) dialAgent(d *dialing) {
	cc, err := s.connectAgent(s.ctx, s.credentials())
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	if err == nil {
		s.api.cc = cc
	}
	d.err = err
	s.api.dialing = nil
	close(d.done)
}

func (s *Session) connectAgent(ctx context.Context, by credentials) (*http2.ClientConn, error) {
	tc, nc, err := s.dial(ctx, protoHTTP2, s.placeOfRequest(), by, s.verify)
	if err != nil {
		return nil, err
	}
	cc, err := s.dialer.transport.NewClientConn(tc)
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("begin HTTP/2: %w", err)
	}
	nc.judge(s.dialer.late, s.dialer.limits.silence())
	return cc, nil
}
