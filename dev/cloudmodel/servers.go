package cloudmodel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/elotl/kip/dev/listen"
)

// Servers are what serves a model. Close them, and then Wait.
type Servers struct {
	of      string // whom they serve, for errors
	log     *slog.Logger
	failed  chan error
	running sync.WaitGroup
	all     []*http.Server
}

// NewServers returns none yet, of a cloud by its name.
func NewServers(of string, log *slog.Logger) *Servers {
	return &Servers{of: of, log: log, failed: make(chan error, 1)}
}

// Failed tells why something serves no more, if nobody closed it.
func (s *Servers) Failed() <-chan error { return s.failed }

// Go runs what serves until it is closed.
func (s *Servers) Go(serve func() error) {
	s.running.Go(func() {
		err := serve()
		if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case s.failed <- fmt.Errorf("serve %s: %w", s.of, err):
		default: // the first failure is the cause
		}
	})
}

// Serve serves on a listener.
func (s *Servers) Serve(l net.Listener, server *http.Server) {
	s.all = append(s.all, server)
	s.Go(func() error { return server.Serve(l) })
}

// Listen serves a handler on an address, at the port if that is free, and returns its host and port. With a certificate it speaks
// HTTPS.
func (s *Servers) Listen(ctx context.Context, at netip.Addr, port uint16, h http.Handler, by *tls.Certificate) (string, error) {
	l, err := listen.On(ctx, at, port)
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	address := l.Addr().String()
	if by != nil {
		server.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*by}, MinVersion: tls.VersionTLS12})
	}
	s.Serve(l, server)
	return address, nil
}

// Close closes the servers.
func (s *Servers) Close() error {
	var errs []error
	for _, one := range s.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// Wait returns when nothing serves any more. What Go runs, whoever made it closes.
func (s *Servers) Wait() { s.running.Wait() }
