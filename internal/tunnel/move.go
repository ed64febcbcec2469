package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/elotl/kip/internal/agentapi"
)

// RotatedError is that the cell is there, by the key that joined, and refuses this Kip: its
// certificate is of an authority that this Kip does not have. The store is older than the
// rotation of the CA, as one from a backup is.
type RotatedError struct{ err error }

func (e *RotatedError) Error() string {
	return fmt.Sprintf("the cell refuses this Kip, and knows a CA that is not in the store, which is older than that: %v", e.err)
}

// Unwrap returns what the cell answered.
func (e *RotatedError) Unwrap() error { return e.err }

// credentials are those by which the session dials now.
func (s *Session) credentials() credentials {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by
}

// CA is the pki.CAHash of the authority by which the session dials now: by which the cell knew
// Kip last, whatever its record says.
func (s *Session) CA() string { return s.credentials().authority.Hash() }

// notAccepted says why the cell closes a connection that TLS has made. Where it refuses
// Kip's certificate the next attempt is by the other authority, if there are two: what is
// recorded may be older than what the cell was told.
func (s *Session) notAccepted(tc *tls.Conn, by credentials, err error) error {
	err = fmt.Errorf("the cell does not accept this connection: %w", err)
	if op, is := errors.AsType[*net.OpError](err); !is || op.Op != "remote error" {
		return err
	}
	all := s.dialer.authorities.All()
	shown, known := tc.ConnectionState().PeerCertificates, false
	for _, a := range all {
		known = known || a.VerifyCell(shown, s.target.CellID) == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range all {
		if other != by.authority && s.by.authority == by.authority {
			s.by = newCredentials(other)
			break
		}
	}
	if s.keyHash != "" && !known { // it was verified by its key
		return &RotatedError{err}
	}
	return err
}

// Trust has a cell that is connected trust Kip's authorities, and no others, and gives it
// a certificate of the one that signs. When it returns nil the cell has proven that it
// knows Kip by that one, by which the session dials from then on. Until then nothing is
// changed, whatever the agent says.
func (s *Session) Trust(ctx context.Context) error {
	s.mu.Lock()
	leaf := s.leaf
	s.mu.Unlock()
	if leaf == nil {
		return ErrNotConnected
	}
	signing := s.dialer.authorities.Signing
	certificate, err := signing.RenewCell(leaf.PublicKey, s.target.CellID)
	if err != nil {
		return err
	}
	if err := (agentapi.Client{Conn: s.Conn()}).PutAuthorities(ctx, agentapi.Authorities{
		Trusted:     s.dialer.authorities.Hashes(),
		Certificate: certificate,
		CA:          signing.Certificate().Raw,
	}); err != nil {
		return err
	}
	if s.credentials().authority == signing {
		return nil
	}
	by := newCredentials(signing)
	cc, err := s.connectAgent(ctx, by)
	if err != nil {
		return fmt.Errorf("connect by the CA that the cell says to trust: %w", err)
	}
	// In TLS 1.3 the cell judges Kip after the handshake.
	if err := cc.Ping(ctx); err != nil {
		_ = cc.Close()
		return fmt.Errorf("connect by the CA that the cell says to trust: %w", err)
	}
	s.mu.Lock()
	s.by = by
	s.mu.Unlock()
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	if s.api.cc != nil {
		s.api.cc.SetDoNotReuse() // it ends with what it is asked now, or when it is idle
	}
	s.api.cc = cc
	return nil
}
