package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"

	"github.com/elotl/kip/internal/pki"
)

// toldRate and toldBurst limit the lines of the log about the connections of a cell:
// one that Kip lost and found again has two.
const toldRate, toldBurst = 1. / 60, 10

// Session is a tunnel to one cell that is kept up until it is closed.
type Session struct {
	dialer  *Dialer
	target  Target // but Token and KeyHash: see token and keyHash
	onSpend OnSpend
	inside  gate // the cell API
	log     *slog.Logger

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	ready  chan struct{}
	done   chan struct{}
	conns  conns
	api    agentLink
	// dials are the goroutines that dial for requests.
	dials   sync.WaitGroup
	failing bool // the last attempt to connect failed; run's own
	// told limits the lines about connections: a cell makes and breaks them as it likes.
	told *rate.Limiter
	// stalling says that in the last attempt the machine answered, and the handshake
	// failed.
	stalling atomic.Bool
	// requestsStall says so of the last connection that was made for a request: a machine may answer
	// the one kind, and let the others wait.
	requestsStall atomic.Bool
	// upgrading holds the requests whose own connection is being made.
	upgrading chan struct{}

	mu        sync.Mutex
	by        credentials
	leaf      *x509.Certificate // that the cell showed last; nil before it has joined
	token     pki.Token         // zero once it is of no more use
	keyHash   string
	connected bool
	everReady bool
	lastErr   error
	waits     time.Time // since when a connection waits for its turn; zero when none does
	held      time.Time // until when the last one waited that waited long
}

// Ready is closed when the session has connected for the first time: the cell
// has joined and answers.
func (s *Session) Ready() <-chan struct{} { return s.ready }

// Done is closed when the session has ended, and nothing of it is left: no
// connection, no goroutine, no request in the cell API.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is nil until the session has ended, then why: ErrClosed after Close, else
// the error of the context given to Keep.
func (s *Session) Err() error {
	select {
	case <-s.done:
		return context.Cause(s.ctx)
	default:
		return nil
	}
}

// Close ends the session and waits for Done.
func (s *Session) Close() {
	s.cancel(ErrClosed)
	<-s.done
}

// Connected says whether the cell's connection to the cell API is up.
func (s *Session) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected
}

// LastError is why the session is not connected: the last failure to connect,
// or how the connection ended. It is nil while connected, and before the first
// attempt has failed.
func (s *Session) LastError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastErr
}

// LastHeard is when anything at all was last received from the machine; while
// connected, that is at most about ten seconds ago. It is the zero Time before.
func (s *Session) LastHeard() time.Time { return s.conns.lastHeard() }

func (s *Session) run() {
	defer close(s.done)
	s.mu.Lock()
	s.token, s.keyHash = s.target.Token, s.target.KeyHash
	s.mu.Unlock()
	var retry retries
	for s.ctx.Err() == nil {
		began := time.Now()
		err := s.stayConnected()
		if time.Since(began) > maxLongWait {
			retry = retries{} // it was not one failure after another
		}
		if s.ctx.Err() == nil {
			s.state(false, err)
			if errors.Is(err, errFlood) {
				s.calm()
			}
			_ = retry.wait(s.ctx, time.Now())
		}
	}
	s.state(false, context.Cause(s.ctx))
	s.conns.close()
	s.api.close()
	s.dials.Wait()
	s.inside.close()
}

// calm leaves a cell alone that asks too much. That the cell is not heard meanwhile
// is Kip's doing.
func (s *Session) calm() {
	t := time.NewTimer(s.dialer.limits.calm)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = time.Now()
}

// stayConnected connects and returns when the connection has ended, with the
// reason.
func (s *Session) stayConnected() error {
	tc, nc, err := s.attempt()
	s.failing = err != nil
	s.stalling.Store(err != nil && reached(s.ctx, err))
	if err != nil {
		return err
	}
	defer func() { _ = nc.Close() }()
	stop := context.AfterFunc(s.ctx, func() { _ = nc.Close() })
	defer stop()
	s.state(true, nil)
	nc.judge(s.dialer.late, s.dialer.limits.silence())
	held := &holder{conn: nc, lasts: s.dialer.limits.hold}
	s.dialer.server.ServeConn(tc, &http2.ServeConnOpts{
		Context:          context.WithValue(s.ctx, holderKey{}, held),
		BaseConfig:       s.dialer.base,
		Handler:          &s.inside,
		SawClientPreface: true,
	})
	if held.flood.Load() {
		return errFlood
	}
	if err := nc.cause(); err != nil {
		return fmt.Errorf("the connection to the cell broke: %w", err)
	}
	// It is this end that closed, since it heard nothing: what else is open
	// to this machine is as dead, but has nobody who would notice.
	s.conns.closeAll()
	return fmt.Errorf("the cell was silent for %v", s.dialer.limits.silence())
}

// attempt tries once to connect, and to join before if need be. Whether the
// cell has joined, the cell knows best: if Kip or the cell crashed in a join,
// what is recorded here may be one step behind. So if a machine answers and
// refuses the one, it is asked for the other.
func (s *Session) attempt() (*tls.Conn, *conn, error) {
	s.mu.Lock()
	token, spent := s.token, s.keyHash != ""
	s.mu.Unlock()
	if token.IsZero() || spent {
		tc, nc, err := s.connect()
		if err == nil || token.IsZero() || !reached(s.ctx, err) || errors.Is(err, ErrKeyChanged) {
			return tc, nc, err
		}
		if joinErr := s.join(token); joinErr != nil {
			return nil, nil, fmt.Errorf("%w; or, if it has not joined: %w", err, joinErr)
		}
		return s.connect()
	}
	err := s.join(token)
	if err != nil && !reached(s.ctx, err) {
		return nil, nil, err
	}
	tc, nc, connErr := s.connect()
	if err != nil && connErr != nil {
		return nil, nil, fmt.Errorf("%w; or, if it has joined already: %w", err, connErr)
	}
	return tc, nc, connErr
}

// join gets the cell its certificate.
func (s *Session) join(token pki.Token) error {
	// Without tickets: what the cell shows here is no certificate of Kip's authority.
	by := credentials{authority: s.credentials().authority}
	tc, nc, err := s.dial(s.ctx, protoJoin, s.place(), by,
		// Who it is, the token proves, once the connection is there.
		func(tls.ConnectionState) error { return nil })
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	defer func() { _ = nc.Close() }()
	g := &granter{
		authority: by.authority,
		cellID:    s.target.CellID,
		token:     token,
		spend:     s.spend,
	}
	state := tc.ConnectionState()
	if err := atDeadline(s.ctx, nc, s.dialer.limits.join, func() error { return g.run(tc, &state) }); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	s.log.Info("the cell joined")
	return nil
}

// spend records that the token is spent on a key: a second time with the same
// key is the same join, done again.
func (s *Session) spend(keyHash string) error {
	s.mu.Lock()
	spentOn := s.keyHash
	s.mu.Unlock()
	switch spentOn {
	case keyHash:
		return nil
	case "":
	default:
		return ErrKeyChanged
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.dialer.limits.join)
	defer cancel()
	if err := s.onSpend(ctx, keyHash); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keyHash = keyHash
	return nil
}

// connect opens the cell's connection to the cell API. It returns when the cell
// has accepted it, which in TLS 1.3 is later than the end of the handshake: when
// it has begun to speak HTTP/2.
func (s *Session) connect() (_ *tls.Conn, _ *conn, err error) {
	by := s.credentials()
	tc, nc, err := s.dial(s.ctx, protoCellAPI, s.place(), by, s.verify)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = nc.Close()
		}
	}()
	preface := make([]byte, len(http2.ClientPreface))
	if err := atDeadline(s.ctx, nc, s.dialer.limits.handshake, func() error {
		_, err := io.ReadFull(tc, preface)
		return err
	}); err != nil {
		return nil, nil, s.notAccepted(tc, by, err)
	}
	if err := begins(preface, s.dialer.term); err != nil {
		return nil, nil, err
	}
	state := tc.ConnectionState()
	keyHash, err := leafHash(&state)
	if err != nil {
		return nil, nil, err
	}
	// If the join's record was lost, this makes it good.
	if err := s.spend(keyHash); err != nil {
		return nil, nil, fmt.Errorf("record the cell's key: %w", err)
	}
	s.mu.Lock()
	s.token, s.leaf = pki.Token{}, state.PeerCertificates[0]
	s.mu.Unlock()
	return tc, nc, nil
}

// verify says whether the other end is this cell: by the key that joined, where that is
// known, and else by an authority. Kip has signed for that key itself, also where its store
// is older than the authority by which it did so last.
func (s *Session) verify(state tls.ConnectionState) error {
	keyHash, err := leafHash(&state)
	if err != nil {
		return err
	}
	s.mu.Lock()
	known, by := s.keyHash, s.by
	s.mu.Unlock()
	switch known {
	case "":
		return by.authority.VerifyCell(state.PeerCertificates, s.target.CellID)
	case keyHash:
		return pki.NamesCell(state.PeerCertificates[0], s.target.CellID)
	}
	return ErrKeyChanged
}

// state notes and tells whether the session is connected, and if not, why.
func (s *Session) state(connected bool, err error) {
	s.mu.Lock()
	changed := connected != s.connected
	s.connected, s.lastErr = connected, err
	first := connected && !s.everReady
	s.everReady = s.everReady || connected
	s.mu.Unlock()
	if first {
		close(s.ready)
	}
	level := slog.LevelDebug
	if changed && s.told.Allow() {
		level = slog.LevelInfo
	}
	switch {
	case changed && connected:
		s.log.Log(s.ctx, level, "connected to the cell")
	case changed:
		s.log.Log(s.ctx, level, "disconnected from the cell", "err", err)
	case err != nil:
		s.log.Debug("cannot connect to the cell", "err", err)
	}
	if s.target.OnState != nil {
		s.target.OnState(connected, err)
	}
}
