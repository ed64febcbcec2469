package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/elotl/kip/internal/version"
)

// Config of a Server. All fields are required.
type Config struct {
	// Dir is where the socket is made; it must exist.
	Dir string
	// Version of Kip.
	Version   string
	Explainer Explainer
	Log       *slog.Logger
}

// Server serves the local socket. Make it with New.
type Server struct {
	c   Config
	mux *http.ServeMux
}

// New checks the configuration. It has no effect outside.
func New(c Config) (*Server, error) {
	if c.Dir == "" || c.Version == "" || c.Explainer == nil || c.Log == nil {
		return nil, errors.New("local socket: Dir, Version, Explainer and Log must be set")
	}
	s := &Server{c: c, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET "+PathVersion, s.version)
	s.mux.HandleFunc("GET "+PathWhy, s.why)
	s.mux.HandleFunc("GET "+PathCells, s.cells)
	return s, nil
}

func (s *Server) path() string { return filepath.Join(s.c.Dir, SocketName) }

// Run serves until ctx ends, and removes the socket then. It is an error if
// another process serves there; a socket that nobody serves is replaced.
func (s *Server) Run(ctx context.Context) error {
	l, err := s.listen(ctx)
	if err != nil {
		return fmt.Errorf("local socket %s: %w", s.path(), err)
	}
	server := &http.Server{
		Handler:           s.mux,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(s.c.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err = server.Serve(l)
	removed := os.Remove(s.path())
	if ctx.Err() != nil {
		err = nil
	}
	if err = errors.Join(err, removed); err != nil {
		return fmt.Errorf("local socket %s: %w", s.path(), err)
	}
	return nil
}

// listen makes the socket in a folder that nobody else can enter and moves it
// into place when only its owner can open it: a socket gets its rights after it is
// there.
func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	if conn, err := dial(ctx, s.path()); err == nil {
		conn.Close()
		return nil, errors.New("another Kip serves here")
	}
	temp, err := os.MkdirTemp(s.c.Dir, ".kip-") // mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	at := filepath.Join(temp, SocketName)
	var l net.Listener
	err = withAddress(at, func(address string) (err error) {
		var lc net.ListenConfig
		l, err = lc.Listen(ctx, "unix", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it moves
	if err = os.Chmod(at, 0o600); err == nil {
		err = os.Rename(at, s.path())
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, Version{Version: s.c.Version, Kubernetes: version.Kubernetes, Go: runtime.Version()}, nil)
}

func (s *Server) why(w http.ResponseWriter, r *http.Request) {
	namespace, pod := r.FormValue("namespace"), r.FormValue("pod")
	if namespace == "" || pod == "" {
		s.write(w, http.StatusBadRequest, problem{"the query must have namespace and pod"})
		return
	}
	e, err := s.c.Explainer.Why(r.Context(), namespace, pod)
	s.answer(w, e, err)
}

func (s *Server) cells(w http.ResponseWriter, r *http.Request) {
	list, err := s.c.Explainer.Cells(r.Context())
	if list == nil {
		list = []Cell{}
	}
	s.answer(w, list, err)
}

func (s *Server) answer(w http.ResponseWriter, v any, err error) {
	switch {
	case err == nil:
		s.write(w, http.StatusOK, v)
	case errors.Is(err, ErrNotFound):
		s.write(w, http.StatusNotFound, problem{err.Error()})
	default:
		s.c.Log.Warn("local socket cannot answer", "err", err)
		s.write(w, http.StatusInternalServerError, problem{err.Error()})
	}
}

func (s *Server) write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.c.Log.Debug("local socket: an answer was not sent in full", "err", err)
	}
}
