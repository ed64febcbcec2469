package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/elotl/kip/internal/version"
)

// Config of a Server. All fields are required, unless they say otherwise.
type Config struct {
	// Dir is where the socket is made; it must exist.
	Dir string
	// Version of Kip.
	Version   string
	Explainer Explainer
	// Usage returns what each cell has asked of its API, in any order. Optional.
	Usage func() []CellUsage
	// Costs returns what was spent; ErrBadQuery where that cannot be. Optional.
	Costs func(context.Context, CostQuery) (Costs, error)
	// Backup writes a backup of the store. Optional: without it none is served.
	Backup func(ctx context.Context, w io.Writer) error
	// Cleaner is optional: without it nothing can be cleaned up through the socket.
	Cleaner Cleaner
	// Holder is optional: without it nothing is held back.
	Holder Holder
	// Generation is optional: without it no store can be behind.
	Generation StoreGeneration
	// CAKeeper is optional: without it no CA is rotated.
	CAKeeper CAKeeper
	Log      *slog.Logger
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
	// Who may open the socket may read Kip's memory anyway.
	s.mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	s.mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	s.mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	s.mux.HandleFunc("GET "+PathVersion, s.version)
	s.mux.HandleFunc("GET "+PathWhy, s.why)
	s.mux.HandleFunc("GET "+PathCells, func(w http.ResponseWriter, r *http.Request) { list(s, w, r, c.Explainer.Cells) })
	s.mux.HandleFunc("GET "+PathConsole, s.console)
	s.mux.HandleFunc("GET "+PathStandby, func(w http.ResponseWriter, r *http.Request) { list(s, w, r, c.Explainer.Standby) })
	s.mux.HandleFunc("GET "+PathCapacity, func(w http.ResponseWriter, r *http.Request) { list(s, w, r, c.Explainer.Capacity) })
	if c.Usage != nil {
		s.mux.HandleFunc("GET "+PathUsage, func(w http.ResponseWriter, r *http.Request) {
			list(s, w, r, func(context.Context) ([]CellUsage, error) { return c.Usage(), nil })
		})
	}
	if c.Costs != nil {
		s.mux.HandleFunc("GET "+PathCost, s.costs)
	}
	if c.Backup != nil {
		s.mux.HandleFunc("GET "+PathBackup, s.backup)
	}
	if c.Cleaner != nil {
		s.mux.HandleFunc("GET "+PathCleanup, s.holdings)
		s.mux.HandleFunc("POST "+PathCleanup, s.clean)
	}
	if h := c.Holder; h != nil {
		s.mux.HandleFunc("GET "+PathHeld, func(w http.ResponseWriter, _ *http.Request) { s.answer(w, h.Held(), nil) })
		s.mux.HandleFunc("POST "+PathHeld, s.allow)
	}
	if l := c.Generation; l != nil {
		s.mux.HandleFunc("GET "+PathGeneration, func(w http.ResponseWriter, _ *http.Request) { s.answer(w, l.Generation(), nil) })
		s.mux.HandleFunc("POST "+PathGeneration, s.takeOver)
	}
	if k := c.CAKeeper; k != nil {
		s.mux.HandleFunc("GET "+PathCA, func(w http.ResponseWriter, _ *http.Request) { s.answer(w, k.CA(), nil) })
		s.mux.HandleFunc("POST "+PathCA, s.rotate)
		s.mux.HandleFunc("POST "+PathUnmoved, s.endUnmoved)
	}
	return s, nil
}

// takeOver has the store take over, and says so in the log: a person has decided it.
func (s *Server) takeOver(w http.ResponseWriter, r *http.Request) {
	before := s.c.Generation.Generation()
	if err := s.c.Generation.TakeOver(r.Context(), r.FormValue("shown")); err != nil {
		s.answer(w, nil, err)
		return
	}
	// Kip begins anew, also where nobody hears the answer.
	defer s.c.Generation.Reload()
	s.c.Log.Warn("the store takes over the instances that it does not know of, as a person has decided", "store", before.Store,
		"instances", len(before.Unknown))
	s.answerNow(w, before)
}

// answerNow answers before the socket is closed.
func (s *Server) answerNow(w http.ResponseWriter, v any) {
	s.answer(w, v, nil)
	if err := http.NewResponseController(w).Flush(); err != nil {
		s.c.Log.Debug("local socket: an answer was not sent in full", "err", err)
	}
}

// rotate begins a rotation of the CA.
func (s *Server) rotate(w http.ResponseWriter, r *http.Request) {
	ca, err := s.c.CAKeeper.RotateCA(r.Context())
	if err != nil {
		s.answer(w, nil, err)
		return
	}
	defer s.c.CAKeeper.Reload()
	s.answerNow(w, ca)
}

// endUnmoved ends cells that depend on the old CA, and says so in the log: a person has
// decided it.
func (s *Server) endUnmoved(w http.ResponseWriter, r *http.Request) {
	ended, err := s.c.CAKeeper.EndUnmoved(r.FormValue("shown"))
	for _, u := range ended {
		s.c.Log.Warn("a cell that depends on the old CA ends, as a person has decided", "cell", u.Cell, "pod", u.Pod.String(), "why", u.Why)
	}
	s.answer(w, ended, err)
}

// allow lets pass what is held back, and says so in the log: a person has decided it.
func (s *Server) allow(w http.ResponseWriter, r *http.Request) {
	seen, err := time.Parse(time.RFC3339Nano, r.FormValue("seen"))
	if err != nil {
		s.write(w, http.StatusBadRequest, problem{fmt.Sprintf("seen: %v: it must be the time up to which the ends were seen", err)})
		return
	}
	all := s.c.Holder.Allow(seen)
	for _, h := range all {
		s.c.Log.Warn("an end that was held back may pass, as a person has decided", "instance", h.Instance, "cell", h.Cell, "pod", h.Pod.String(),
			"why", h.Why)
	}
	s.answer(w, all, nil)
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

func (s *Server) console(w http.ResponseWriter, r *http.Request) {
	cell := r.FormValue("cell")
	if cell == "" {
		s.write(w, http.StatusBadRequest, problem{"the query must have cell"})
		return
	}
	text, err := s.c.Explainer.Console(r.Context(), cell)
	s.answer(w, text, err)
}

func list[T any](s *Server, w http.ResponseWriter, r *http.Request, of func(context.Context) ([]T, error)) {
	all, err := of(r.Context())
	if all == nil {
		all = []T{}
	}
	s.answer(w, all, err)
}

// backup streams. Its first bytes settle the status, so that what goes wrong
// later is told in a trailer.
func (s *Server) backup(w http.ResponseWriter, r *http.Request) {
	out := &firstWrite{ResponseWriter: w}
	w.Header().Set("Content-Type", "application/x-ndjson")
	err := s.c.Backup(r.Context(), out)
	switch {
	case err == nil:
	case !out.begun:
		s.answer(w, nil, err)
	default:
		s.c.Log.Warn("a backup was cut off", "err", err)
		// Sent out before the end, or a short answer would have a length and no
		// trailer.
		flushed := http.NewResponseController(w).Flush()
		w.Header().Set(http.TrailerPrefix+BackupError, err.Error())
		if flushed != nil {
			s.c.Log.Debug("local socket: nobody hears of the cut off backup", "err", flushed)
		}
	}
}

// firstWrite knows whether an answer has begun.
type firstWrite struct {
	http.ResponseWriter
	begun bool
}

func (f *firstWrite) Write(p []byte) (int, error) {
	f.begun = true
	return f.ResponseWriter.Write(p)
}

func (s *Server) holdings(w http.ResponseWriter, r *http.Request) {
	h, err := s.c.Cleaner.Holdings(r.Context())
	s.answer(w, h, err)
}

// clean streams what a cleanup does, until it is done or whoever asked for it
// goes away.
func (s *Server) clean(w http.ResponseWriter, r *http.Request) {
	timeout, err := time.ParseDuration(r.FormValue("timeout"))
	if err != nil || timeout <= 0 {
		why := fmt.Sprintf("timeout is %q: it must be a duration above 0, such as 10m", r.FormValue("timeout"))
		s.write(w, http.StatusBadRequest, problem{why})
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), timeout, fmt.Errorf("the cleanup has not ended within %s", timeout))
	defer cancel()
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	send := func(p Progress) {
		p.Time = time.Now().UTC()
		if err := errors.Join(out.Encode(p), flush.Flush()); err != nil {
			s.c.Log.Debug("local socket: nobody hears of the cleanup", "err", err)
		}
	}
	h, err := s.c.Cleaner.Clean(ctx, func(message string) {
		s.c.Log.Info("cleanup", "step", message)
		send(Progress{Message: message})
	})
	last := Progress{Holdings: &h}
	if err != nil {
		s.c.Log.Error("cleanup", "err", err)
		last.Error = err.Error()
	}
	send(last)
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
