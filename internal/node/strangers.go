package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/sources"
)

// Everybody may connect to the kubelet port. Until the API server knows who it is, a connection is a stranger's.
const (
	// mostStrangers is how many connections of strangers are open: an API server opens one for each exec, and is
	// known in a moment.
	mostStrangers = 4096
	// smallHeader is how many bytes a stranger may send without a place: a token has a few thousand.
	smallHeader = 16 << 10
	// placesOfLarge is how many strangers may send more at the same time, up to mostSent each, and placesOfOne how
	// many of one source. The others wait, for placeTimeout.
	placesOfLarge, placesOfOne = 64, 16
	placeTimeout               = 20 * time.Second
	// mostSent is how much a stranger may send at all: a header, and what TLS and HTTP add.
	mostSent = mostHeader + 128<<10
)

// strangers returns a listener that bounds what those hold of whom it is not known yet who they are.
func strangers(l net.Listener) net.Listener {
	return &strangerListener{
		Listener: sources.Listener{Listener: l, All: mostStrangers},
		places:   keyed.NewPlaces[sources.Source](placesOfLarge, placesOfOne),
	}
}

type strangerListener struct {
	sources.Listener
	places *keyed.Places[sources.Source]
}

// Accept implements net.Listener.
func (l *strangerListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &stranger{Conn: c.(*sources.Conn), places: l.places, ctx: ctx, cancel: cancel}, nil
}

// stranger is a connection of somebody who is not known yet.
type stranger struct {
	*sources.Conn
	places *keyed.Places[sources.Source]
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	known  atomic.Bool
	sent   int // by a stranger; of Read, which is called by one goroutine at a time

	mu    sync.Mutex
	place func() // leaves it; nil where there is none
	left  bool
}

// errTooLarge is why a connection is not read any more.
var errTooLarge = errors.New("client sent too many bytes before it was authenticated")

// Read implements net.Conn. A stranger who sends much waits for a place.
func (c *stranger) Read(p []byte) (int, error) {
	if c.known.Load() {
		return c.Conn.Read(p)
	}
	if c.sent >= mostSent {
		return 0, errTooLarge
	}
	if c.sent >= smallHeader {
		if err := c.takePlace(); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	c.sent += n
	return n, err
}

func (c *stranger) takePlace() error {
	c.mu.Lock()
	has := c.place != nil || c.left
	c.mu.Unlock()
	if has {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, placeTimeout)
	defer cancel()
	leave, err := c.places.Take(ctx, c.From)
	if err != nil {
		return fmt.Errorf("wait for a place: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		leave()
		return nil
	}
	c.place = leave
	return nil
}

func (c *stranger) leavePlace() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	if c.place != nil {
		c.place()
		c.place = nil
	}
}

// Close implements net.Conn.
func (c *stranger) Close() error {
	c.cancel()
	c.leavePlace()
	return c.Conn.Close()
}

type strangerKey struct{}

// withStranger is an http.Server's ConnContext.
func withStranger(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, strangerKey{}, c)
}

// proven notes that it is known whose request it is that has this context.
func proven(ctx context.Context) {
	if c, ok := ctx.Value(strangerKey{}).(*stranger); ok && !c.known.Swap(true) {
		c.leavePlace()
		c.Proven()
	}
}
