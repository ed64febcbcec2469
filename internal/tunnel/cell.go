package tunnel

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/sources"
)

// CellConfig is what a cell's end of the tunnel needs.
type CellConfig struct {
	UserData agentapi.UserData
	// StateDir is made with mode 0700. It holds the key that is made on this
	// machine and the certificate of the join, so that a restarted agent is
	// still the same cell.
	StateDir string
	// Handler serves Kip's requests to the agent, HTTP/2 and, for upgrades,
	// HTTP/1.1. Nobody else's requests reach it.
	Handler http.Handler
	Log     *slog.Logger
}

// Cell is a cell's end of the tunnel.
type Cell struct {
	id      *identity
	terms   *terms
	trust   *trust
	token   pki.Token
	handler http.Handler // cfg.Handler
	serves  http.Handler // handler, and what is the tunnel's own
	log     *slog.Logger
	limits  limits

	tls       *tls.Config // of every connection: its ticket keys are this process's
	link      *link
	transport *http2.Transport
	open      atomic.Pointer[conns] // of Serve

	// Refusals are logged a few at once and then now and then: who is refused
	// decides how often.
	logRefusal rate.Sometimes
	refusals   atomic.Int64
}

// NewCell reads or makes the cell's identity. It opens no connection.
func NewCell(cfg CellConfig) (*Cell, error) { return newCell(cfg, defaultLimits()) }

func newCell(cfg CellConfig, l limits) (*Cell, error) {
	if err := pki.CheckCellID(cfg.UserData.CellID); err != nil {
		return nil, fmt.Errorf("user data: %w", err)
	}
	if err := checkHash(cfg.UserData.CAHash); err != nil {
		return nil, fmt.Errorf("user data: caHash %w", err)
	}
	token, err := pki.ParseToken(cfg.UserData.Token)
	if err != nil {
		return nil, fmt.Errorf("user data: %w", err)
	}
	id, err := openIdentity(cfg.StateDir, cfg.UserData.CellID)
	if err != nil {
		return nil, err
	}
	trust, err := openTrust(id, cfg.UserData.CAHash)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(l, 0, l.patience)
	if err != nil {
		return nil, fmt.Errorf("set up HTTP/2: %w", err)
	}
	c := &Cell{
		id:         id,
		terms:      openTerms(id, cfg.Log),
		token:      token,
		handler:    cfg.Handler,
		trust:      trust,
		log:        cfg.Log.With("cell", id.cellID),
		limits:     l,
		link:       newLink(),
		transport:  transport,
		logRefusal: rate.Sometimes{First: 5, Interval: 10 * time.Second},
	}
	c.serves = c.withAuthorities(cfg.Handler)
	c.tls = &tls.Config{GetConfigForClient: c.config, MinVersion: tls.VersionTLS13}
	return c, nil
}

// checkHash refuses what cannot be an authority's CAHash.
func checkHash(hash string) error {
	if b, err := hex.DecodeString(hash); err != nil || len(b) != sha256.Size {
		return fmt.Errorf("%q: it must be a SHA-256 in 64 lower-case hex digits", hash)
	}
	return nil
}

// Joined is closed when the cell has its certificate, and its token is spent.
func (c *Cell) Joined() <-chan struct{} { return c.id.joined }

// RoundTripper sends requests to Kip's cell API on the connection that Kip
// dialled last, whatever host their URLs name. A request waits for a connection
// until its context ends, but at most ten seconds: then it fails with
// ErrNotConnected. When the connection breaks, what runs on it, watches too,
// ends with an error.
func (c *Cell) RoundTripper() http.RoundTripper {
	return roundTripFunc(func(req *http.Request) (*http.Response, error) {
		cc, err := c.link.reserve(req.Context(), c.limits.wait)
		if err != nil {
			closeBody(req)
			return nil, err
		}
		return cc.RoundTrip(tunnelled(req))
	})
}

// Serve accepts connections of Kip, and nobody's else, until ctx ends: then it
// has closed all of them, ended what it started, and returns ctx's error.
func (c *Cell) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg      sync.WaitGroup
		all     = &conns{}
		pending = pending{max: c.limits.pending, arrivals: keyed.Rates[sources.Source]{
			Every: c.limits.arrivalEvery, Burst: c.limits.arrivalBurst, Keys: maxSources,
		}}
		inner  = newHandoff(l.Addr())
		inside = &gate{handler: c.serves}
	)
	c.open.Store(all)
	srv := &http.Server{
		Handler:           inside,
		ReadHeaderTimeout: c.limits.header,
		IdleTimeout:       2 * c.limits.idle, // Kip closes first
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
		Protocols:         new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
			SendPingTimeout:               c.limits.pingAfter,
			PingTimeout:                   c.limits.patience,
		},
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	wg.Go(func() { _ = srv.Serve(inner) }) // ends when inner does
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })

	err := c.accept(ctx, l, func(nc net.Conn) {
		from := sources.Of(nc.RemoteAddr().String())
		if !pending.admits(from, time.Now()) {
			_ = nc.Close()
			c.refused(ctx, nc.RemoteAddr(), errTooMany)
			return
		}
		tracked, err := all.add(nc)
		if err != nil {
			return
		}
		pending.add(tracked, from)
		wg.Go(func() {
			tc, err := c.handshake(ctx, tracked)
			pending.remove(tracked)
			if err == nil {
				pending.proved(from)
				err = c.admit(ctx, tc, tracked)
			}
			if err == nil {
				err = c.serve(ctx, tc, tracked, inner)
			}
			if err != nil {
				_ = tracked.Close()
				c.refused(ctx, nc.RemoteAddr(), err)
			}
		})
	})

	stop()
	cancel()
	_ = l.Close()
	_ = inner.Close()
	all.close()
	_ = srv.Close()
	wg.Wait()
	inside.close()
	return err
}

// accept hands each connection to f until ctx ends or the listener is closed.
func (c *Cell) accept(ctx context.Context, l net.Listener, f func(net.Conn)) error {
	var retry retries
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			retry = retries{}
			f(nc)
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connections at %s: %w", l.Addr(), err)
		}
		// Such as too many open files: it passes.
		c.log.Warn("cannot accept a connection", "err", err)
		if err := retry.wait(ctx, time.Now()); err != nil {
			return err
		}
	}
}

// refused logs that a connection was turned away.
func (c *Cell) refused(ctx context.Context, from net.Addr, err error) {
	if ctx.Err() != nil {
		return // nobody was refused: this end stops
	}
	n := c.refusals.Add(1)
	c.logRefusal.Do(func() {
		c.log.Warn("refused a connection", "from", from.String(), "err", err, "refused", n)
	})
}

// handshake returns when the other end has proven to be Kip.
func (c *Cell) handshake(ctx context.Context, nc *conn) (*tls.Conn, error) {
	tc := tls.Server(nc, c.tls)
	return tc, atDeadline(ctx, nc, c.limits.handshake, func() error { return tc.HandshakeContext(ctx) })
}

// admit refuses a Kip that another has followed, once it has proven to be Kip. A newer
// one ends what those before it have open here: they may go on as if they led.
func (c *Cell) admit(ctx context.Context, tc *tls.Conn, nc *conn) error {
	state := tc.ConnectionState()
	ca, err := c.verify(state)
	if err != nil {
		return err
	}
	by := pki.CAHash(ca.Raw)
	nc.authority.Store(&by)
	// Who closes those that are trusted no more may have come before that.
	if !slices.Contains(c.trust.now(), by) {
		return errors.New("its authority is trusted no more")
	}
	term, err := pki.Term(state.PeerCertificates[0])
	if err != nil {
		return err
	}
	newest, err := c.terms.admit(term, time.Now())
	if newest {
		c.open.Load().closeBut(nc)
		if err != nil {
			c.log.Warn("store the term of Kip; until this process ends it is known all the same", "err", err)
		}
		return nil
	}
	if older, is := errors.AsType[*olderError](err); is && state.NegotiatedProtocol == protoCellAPI {
		said := atDeadline(ctx, nc, c.limits.handshake, func() error {
			_, err := fmt.Fprintf(tc, followed, older.highest)
			return err
		})
		return errors.Join(err, said)
	}
	return err
}

// serve does what Kip opened the connection for, or hands it on to be done.
func (c *Cell) serve(ctx context.Context, tc *tls.Conn, nc *conn, inner *handoff) error {
	state := tc.ConnectionState()
	switch state.NegotiatedProtocol {
	case protoJoin:
		ca, err := c.verify(state)
		if err != nil {
			return fmt.Errorf("join: %w", err)
		}
		j := &joiner{id: c.id, token: c.token, ca: ca}
		if err := atDeadline(ctx, nc, c.limits.join, func() error { return j.run(tc, &state) }); err != nil {
			return fmt.Errorf("join: %w", err)
		}
		c.log.Info("joined")
		return tc.Close()
	case protoCellAPI:
		return c.connect(tc, nc)
	default:
		return inner.give(tc)
	}
}

// config chooses by the one protocol that is offered. Until the cell has joined
// that is the join, afterwards it never is again.
func (c *Cell) config(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if len(hello.SupportedProtos) != 1 {
		return nil, fmt.Errorf("it offers %d protocols, not one", len(hello.SupportedProtos))
	}
	proto, cert := hello.SupportedProtos[0], c.id.certificate()
	switch proto {
	case protoJoin:
		if cert != nil {
			return nil, errors.New("it wants to join, this cell has joined already")
		}
		cert = c.id.unsigned
	case protoHTTP2, protoHTTP1, protoCellAPI:
		if cert == nil {
			return nil, errors.New("this cell has not joined yet")
		}
	default:
		return nil, fmt.Errorf("it offers the unknown protocol %q", printable(proto))
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{proto},
		Certificates: []tls.Certificate{*cert},
		// Verified by VerifyConnection: the authority is known by its hash,
		// and the caller brings its certificate.
		ClientAuth: tls.RequireAnyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := c.verify(state)
			return err
		},
		// After a join the cell has another certificate.
		SessionTicketsDisabled: proto == protoJoin,
	}, nil
}

// verify returns the certificate of the authority that says that the other end is
// Kip. A connection that is resumed has the certificates of the one before, which
// were Kip's, and are judged again.
func (c *Cell) verify(state tls.ConnectionState) (*x509.Certificate, error) {
	return pki.VerifyKip(state.PeerCertificates, time.Now(), c.trust.now()...)
}

// connect makes a connection the one that the cell's requests go by; the one
// before, if any, is closed.
func (c *Cell) connect(tc *tls.Conn, nc *conn) error {
	cc, err := c.transport.NewClientConn(tc)
	if err != nil {
		return fmt.Errorf("begin HTTP/2: %w", err)
	}
	c.link.set(cc)
	c.log.Info("connected to Kip")
	// Forgotten when it closes, so that requests wait for the next one.
	<-nc.closed
	c.link.unset(cc)
	_ = cc.Close()
	c.log.Info("disconnected from Kip", "err", nc.cause())
	return nil
}

// handoff is a net.Listener of connections that are already accepted.
type handoff struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandoff(addr net.Addr) *handoff {
	return &handoff{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *handoff) give(c net.Conn) error {
	select {
	case h.conns <- c:
		return nil
	case <-h.done:
		return ErrClosed
	}
}

// Accept implements net.Listener.
func (h *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handoff) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr implements net.Listener.
func (h *handoff) Addr() net.Addr { return h.addr }
