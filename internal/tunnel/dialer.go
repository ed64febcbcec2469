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
	"runtime"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"

	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/stall"
)

// DialerConfig is what Kip's end of the tunnels needs.
type DialerConfig struct {
	// Authority is what Kip signs with.
	Authority *pki.Authority
	// Before is the one that it signed with before, by which some cells know it yet;
	// optional.
	Before *pki.Authority
	// Term is that for which this Kip leads: cells refuse one with a lower term than they
	// have seen. 0 is none, and never refused.
	Term uint64
	Log  *slog.Logger
	// Late measures this process: while it is late, no cell is silent. Optional:
	// a process without it is never late.
	Late *stall.Meter
	// Dial opens a connection to a cell. If nil, it is TCP.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
}

// Dialer is Kip's end of all tunnels. It holds what their sessions share.
type Dialer struct {
	authorities pki.Authorities
	term        uint64 // DialerConfig.Term
	log         *slog.Logger
	dial        func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	clients     map[*pki.Authority]*pki.Renewed // what this Kip shows, by who has signed it
	limits      limits
	transport   *http2.Transport
	server      *http2.Server
	base        *http.Server // settings only
	late        *stall.Meter
	turns       *turns
	handshakes  chan struct{} // filled by who is in TLS
	stalling    chan struct{} // filled by those of them whose machine let the last handshake fail
}

// NewDialer opens no connection.
func NewDialer(cfg DialerConfig) (*Dialer, error) { return newDialer(cfg, defaultLimits()) }

func newDialer(cfg DialerConfig, l limits) (*Dialer, error) {
	transport, err := newTransport(l, l.idle, unjudged)
	if err != nil {
		return nil, fmt.Errorf("set up HTTP/2: %w", err)
	}
	d := &Dialer{
		authorities: pki.Authorities{Signing: cfg.Authority, Before: cfg.Before},
		term:        cfg.Term,
		log:         cfg.Log,
		dial:        cfg.Dial,
		clients:     map[*pki.Authority]*pki.Renewed{},
		limits:      l,
		transport:   transport,
		server: &http2.Server{
			MaxConcurrentStreams:         maxStreams,
			MaxUploadBufferPerStream:     requestWindow,
			MaxUploadBufferPerConnection: requestConnWindow,
			ReadIdleTimeout:              l.pingAfter,
			PingTimeout:                  unjudged,
			WriteByteTimeout:             l.patience,
		},
		base: &http.Server{
			MaxHeaderBytes: maxAskedHeader,
			ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		},
		late:       cfg.Late,
		turns:      newTurns(cfg.Late),
		handshakes: make(chan struct{}, handshakesPerCPU*runtime.GOMAXPROCS(0)),
		stalling:   make(chan struct{}, handshakesPerCPU*runtime.GOMAXPROCS(0)/stallingShare),
	}
	for _, a := range d.authorities.All() {
		d.clients[a] = a.Client(cfg.Term)
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
	// CA is the pki.CAHash of the authority by which the cell knows Kip; "" for the only
	// one, or the older of two.
	CA string
	// Rank, if set, says where this cell stands when more cells wait to be connected
	// than may begin at once: 0 or more, the lowest first.
	Rank func() int
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

		upgrading: make(chan struct{}, upgradesAtOnce),

		by:   newCredentials(d.authorities.Of(t.CA)),
		told: rate.NewLimiter(toldRate, toldBurst),
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	go s.run()
	return s, nil
}

// unreachableError is that there was no TCP connection: the machine was asked
// nothing, so it is no use to ask it something else.
type unreachableError struct{ error }

func (e unreachableError) Unwrap() error { return e.error }

// credentials are by what a cell knows that it is Kip's.
type credentials struct {
	authority *pki.Authority
	// tickets resume TLS: the cell's certificate comes from them, and is verified as if
	// it had been shown. They are of one authority, since who resumes is who it was. Nil
	// for none.
	tickets tls.ClientSessionCache
}

func newCredentials(a *pki.Authority) credentials {
	return credentials{authority: a, tickets: tls.NewLRUClientSessionCache(1)}
}

// dial connects to the cell for one protocol, when it is its turn. verify judges who
// answers, also when it is by resuming an earlier connection.
func (s *Session) dial(ctx context.Context, proto string, p place, by credentials,
	verify func(tls.ConnectionState) error) (*tls.Conn, *conn, error) {
	d := s.dialer
	if err := s.waiting(p, !p.failing, func() error { return d.turns.wait(ctx, p) }); err != nil {
		return nil, nil, err
	}
	tracked, err := s.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	// Waiting for TCP did not count: machines that are gone do not keep the others
	// waiting.
	began := time.Now()
	slots := []chan struct{}{d.handshakes}
	if p.stalling {
		slots = []chan struct{}{d.stalling, d.handshakes}
	}
	for _, slot := range slots {
		if err := s.waiting(p, !p.stalling, func() error { return enter(ctx, slot) }); err != nil {
			_ = tracked.Close()
			return nil, nil, err
		}
		defer func() { <-slot }()
	}
	if time.Since(began) > d.limits.turn {
		// To the cell, this one has said nothing for as long.
		_ = tracked.Close()
		if tracked, err = s.open(ctx); err != nil {
			return nil, nil, err
		}
	}
	tc := tls.Client(tracked, &tls.Config{
		ClientSessionCache:   by.tickets,
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{proto},
		GetClientCertificate: d.clients[by.authority].GetClientCertificate,
		Time:                 by.authority.Now,
		// Verified by VerifyConnection: a cell has no name in DNS.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if state.NegotiatedProtocol != proto {
				return fmt.Errorf("the machine does not speak %s", proto)
			}
			return verify(state)
		},
	})
	err = atDeadline(ctx, tracked, d.limits.handshake, func() error { return tc.HandshakeContext(ctx) })
	if p.rank == rankRequest && ctx.Err() == nil { // who gave up says nothing about the machine
		s.requestsStall.Store(err != nil)
	}
	if err != nil {
		_ = tracked.Close()
		return nil, nil, fmt.Errorf("TLS for %s: %w", proto, err)
	}
	return tc, tracked, nil
}

// open opens a TCP connection.
func (s *Session) open(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.dialer.limits.connect)
	defer cancel()
	nc, err := s.dialer.dial(ctx, s.target.Addr)
	if err != nil {
		return nil, unreachableError{err}
	}
	return s.conns.add(nc)
}

// enter takes a slot.
func enter(ctx context.Context, slots chan<- struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waiting waits for what Kip alone gives. Where that keeps a machine from being heard
// it is noted: it is not where the last attempt shows that the machine would not be.
func (s *Session) waiting(p place, keeps bool, wait func() error) error {
	if p.rank == rankRequest || !keeps {
		return wait()
	}
	began := time.Now()
	s.mu.Lock()
	s.waits = began
	s.mu.Unlock()
	err := wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = time.Time{}
	if now := time.Now(); now.Sub(began) >= heldAfter {
		s.held = now
	}
	return err
}

// place is where the session stands among those that wait to be connected.
func (s *Session) place() place {
	p := place{
		failing:  s.failing,
		stalling: s.stalling.Load(),
		heard:    s.LastHeard(),
	}
	switch {
	case !p.failing && !p.heard.IsZero() && time.Since(p.heard) > urgentAfter:
		p.rank = rankUrgent
	case s.target.Rank != nil:
		p.rank = s.target.Rank()
	}
	return p
}

// HeldBack is when Kip itself last kept the session from connecting for five seconds
// or more: now while it does, the zero Time if it never did. That a session waits for
// its turn after an attempt that failed, or for its handshake after one that the machine
// let fail, is not Kip's doing.
func (s *Session) HeldBack() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); !s.waits.IsZero() && now.Sub(s.waits) >= heldAfter {
		return now
	}
	return s.held
}

// reached says whether err came from a machine that answered.
func reached(ctx context.Context, err error) bool {
	var no unreachableError
	return ctx.Err() == nil && !errors.As(err, &no)
}
