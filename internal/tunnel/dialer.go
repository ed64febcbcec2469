package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/net/http2"

	"github.com/elotl/kip/internal/pki"
)

// maxHandshakes bounds how many connections are in TLS at once, so that a Kip
// that has just started and dials thousands of cells finishes some, instead of
// having all of them time out. Waiting for TCP does not count: machines that
// are gone do not keep the others waiting.
const maxHandshakes = 64

// DialerConfig is what Kip's end of the tunnels needs.
type DialerConfig struct {
	Authority *pki.Authority
	Log       *slog.Logger
	// Dial opens a connection to a cell. If nil, it is TCP.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
}

// Dialer is Kip's end of all tunnels. It holds what their sessions share.
type Dialer struct {
	authority  *pki.Authority
	log        *slog.Logger
	dial       func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	client     *pki.Renewed
	limits     limits
	transport  *http2.Transport
	server     *http2.Server
	base       *http.Server // settings only
	handshakes chan struct{}
}

// NewDialer opens no connection.
func NewDialer(cfg DialerConfig) (*Dialer, error) { return newDialer(cfg, defaultLimits()) }

func newDialer(cfg DialerConfig, l limits) (*Dialer, error) {
	transport, err := newTransport(l, l.idle)
	if err != nil {
		return nil, fmt.Errorf("set up HTTP/2: %w", err)
	}
	d := &Dialer{
		authority: cfg.Authority,
		log:       cfg.Log,
		dial:      cfg.Dial,
		client:    cfg.Authority.Client(),
		limits:    l,
		transport: transport,
		server: &http2.Server{
			MaxConcurrentStreams:         maxStreams,
			MaxUploadBufferPerStream:     requestWindow,
			MaxUploadBufferPerConnection: requestConnWindow,
			ReadIdleTimeout:              l.pingAfter,
			PingTimeout:                  l.pingTimeout,
			WriteByteTimeout:             l.pingAfter + l.pingTimeout,
		},
		base: &http.Server{
			MaxHeaderBytes: maxHeader,
			ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		},
		handshakes: make(chan struct{}, maxHandshakes),
	}
	// Otherwise each connection registers itself in a pool of the whole process.
	if err := http2.ConfigureServer(d.base, d.server); err != nil {
		return nil, fmt.Errorf("set up HTTP/2: %w", err)
	}
	if d.dial == nil {
		var nd net.Dialer
		d.dial = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			return nd.DialContext(ctx, "tcp", addr.String())
		}
	}
	return d, nil
}

// Target is a cell to dial.
type Target struct {
	CellID string
	Addr   netip.AddrPort
	// Token is that of the cell's user data; the zero Token when it need not
	// join any more.
	Token pki.Token
	// KeyHash is the pki.KeyHash of the key that the token is spent on, "" if
	// that has not happened: what OnSpend was told, also by an earlier Kip.
	KeyHash string
	// OnState, if set, is told when the session connects and disconnects, and
	// of each failure to connect. It is called by one goroutine, in order,
	// which does nothing else until it returns: it must not wait for anything,
	// least of all for Close.
	OnState func(connected bool, err error)
}

// OnSpend records that a cell's token is spent on the key with this
// pki.KeyHash. When it returns nil, the record will survive a crash; until it
// does, the cell gets no certificate. It may be called again with the same
// hash. If the token is spent on another key it returns an error.
type OnSpend func(ctx context.Context, keyHash string) error

// Keep joins the cell if it has not joined, and keeps a connection to it, with
// all patience, until ctx ends or the session is closed. What the cell asks of
// the cell API goes to cellAPI: a request that reaches it is this cell's.
func (d *Dialer) Keep(ctx context.Context, t Target, cellAPI http.Handler, onSpend OnSpend) (*Session, error) {
	if err := pki.CheckCellID(t.CellID); err != nil {
		return nil, fmt.Errorf("keep a tunnel: %w", err)
	}
	if !t.Addr.IsValid() || t.Addr.Port() == 0 {
		return nil, fmt.Errorf("keep a tunnel to cell %s: address %q: it must be an IP address and a port", t.CellID, t.Addr)
	}
	if cellAPI == nil {
		return nil, fmt.Errorf("keep a tunnel to cell %s: it needs a handler", t.CellID)
	}
	if onSpend == nil {
		return nil, fmt.Errorf("keep a tunnel to cell %s: it needs an OnSpend", t.CellID)
	}
	s := &Session{
		dialer:  d,
		target:  t,
		onSpend: onSpend,
		inside:  gate{handler: cellAPI},
		log:     d.log.With("cell", t.CellID),
		ready:   make(chan struct{}),
		done:    make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	go s.run()
	return s, nil
}

// unreachableError is that there was no TCP connection: the machine was asked
// nothing, so it is no use to ask it something else.
type unreachableError struct{ error }

func (e unreachableError) Unwrap() error { return e.error }

// connect dials the cell for one protocol; verify judges who answers.
func (d *Dialer) connect(ctx context.Context, all *conns, addr netip.AddrPort, proto string,
	verify func(tls.ConnectionState) error) (*tls.Conn, *conn, error) {
	dialCtx, cancel := context.WithTimeout(ctx, d.limits.connect)
	nc, err := d.dial(dialCtx, addr)
	cancel()
	if err != nil {
		return nil, nil, unreachableError{err}
	}
	tracked, err := all.add(nc)
	if err != nil {
		return nil, nil, err
	}
	tc := tls.Client(tracked, &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{proto},
		GetClientCertificate: d.client.GetClientCertificate,
		Time:                 d.authority.Now,
		// Verified by VerifyConnection: a cell has no name in DNS.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if state.NegotiatedProtocol != proto {
				return fmt.Errorf("the machine does not speak %s", proto)
			}
			return verify(state)
		},
	})
	if err := d.handshake(ctx, tc, tracked); err != nil {
		_ = tracked.Close()
		return nil, nil, fmt.Errorf("TLS for %s: %w", proto, err)
	}
	return tc, tracked, nil
}

func (d *Dialer) handshake(ctx context.Context, tc *tls.Conn, nc *conn) error {
	select {
	case d.handshakes <- struct{}{}:
		defer func() { <-d.handshakes }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return atDeadline(ctx, nc, d.limits.handshake, func() error { return tc.HandshakeContext(ctx) })
}

// reached says whether err came from a machine that answered.
func reached(ctx context.Context, err error) bool {
	var no unreachableError
	return ctx.Err() == nil && !errors.As(err, &no)
}
