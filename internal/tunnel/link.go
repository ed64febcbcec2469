package tunnel

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// link is the client half of an HTTP/2 connection that comes and goes.
type link struct {
	mu sync.Mutex
	cc *http2.ClientConn // nil while there is none
	// changed is closed, and replaced, whenever cc is set.
	changed chan struct{}
}

func newLink() *link { return &link{changed: make(chan struct{})} }

// set makes cc the connection, and closes the one that it replaces.
func (l *link) set(cc *http2.ClientConn) {
	l.mu.Lock()
	old := l.cc
	l.cc = cc
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
}

// unset forgets cc, unless it was replaced already.
func (l *link) unset(cc *http2.ClientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cc == cc {
		l.cc = nil
	}
}

// reserve returns a connection with a place for one request, which the caller
// sends. It waits for one until ctx ends, but at most d.
func (l *link) reserve(ctx context.Context, d time.Duration) (*http2.ClientConn, error) {
	var timeout <-chan time.Time // made when there is something to wait for
	for {
		l.mu.Lock()
		cc, changed := l.cc, l.changed
		l.mu.Unlock()
		if cc != nil && cc.ReserveNewRequest() {
			return cc, nil
		}
		if timeout == nil {
			t := time.NewTimer(d)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-changed:
		case <-timeout:
			return nil, fmt.Errorf("%w: waited %v", ErrNotConnected, d)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNotConnected, context.Cause(ctx))
		}
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// tunnelled is the same request, to the one host that there is in a tunnel.
func tunnelled(req *http.Request) *http.Request {
	r := req.WithContext(req.Context())
	u := *req.URL
	u.Scheme, u.Host = "https", authority
	r.URL = &u
	return r
}

// closeBody does what http.RoundTripper promises of requests that are not sent.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
