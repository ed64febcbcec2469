package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/test/journal"
)

func TestMain(m *testing.M) {
	if runBenchmarkCells() {
		return
	}
	goleak.VerifyTestMain(m)
}

// testPatience is how long a test waits for what must come. It only tells a hang from a slow machine.
const testPatience = 5 * time.Minute

// world is Kip's authority, and what one cell was launched with.
type world struct {
	t         *testing.T
	authority *pki.Authority
	token     pki.Token
	cellID    string
	log       *slog.Logger
	logs      *journal.Log
	limits    limits

	mu     sync.Mutex
	spent  string   // the key hash that OnSpend recorded
	spends []string // every call of it
}

func newWorld(t *testing.T) *world {
	t.Helper()
	a, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, authority: a, token: pki.NewToken(), cellID: "c-1", logs: &journal.Log{}, limits: defaultLimits()}
	w.log = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		if strings.Contains(w.logs.String(), w.token.Reveal()) {
			t.Error("the token is in the log")
		}
		if t.Failed() {
			t.Log(w.logs.String())
		}
	})
	return w
}

func (w *world) userData() agentapi.UserData {
	return agentapi.UserData{CellID: w.cellID, CAHash: w.authority.Hash(), Token: w.token.Reveal()}
}

func (w *world) userDataWith(change func(*agentapi.UserData)) agentapi.UserData {
	ud := w.userData()
	change(&ud)
	return ud
}

// spend is an OnSpend that does what the store will do.
func (w *world) spend(_ context.Context, keyHash string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spends = append(w.spends, keyHash)
	if w.spent != "" && w.spent != keyHash {
		return ErrKeyChanged
	}
	w.spent = keyHash
	return nil
}

func (w *world) spentOn() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spent
}

func (w *world) spendCalls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.spends)
}

// machine is a cell that listens.
type machine struct {
	*Cell
	addr netip.AddrPort
	stop func()
}

// start runs a cell on a port of its own, or on that of addr.
func (w *world) start(dir string, addr string, h http.Handler) *machine {
	w.t.Helper()
	return w.startWith(w.userData(), dir, addr, h)
}

func (w *world) startWith(ud agentapi.UserData, dir, addr string, h http.Handler, also ...func(*Cell)) *machine {
	w.t.Helper()
	c, err := newCell(CellConfig{UserData: ud, StateDir: dir, Handler: h, Log: w.log}, w.limits)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range also {
		f(c)
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Serve(ctx, l) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := wait(w.t, "the cell to stop", ended); !errors.Is(err, context.Canceled) {
			w.t.Errorf("Serve returned %v", err)
		}
	})
	w.t.Cleanup(stop)
	return &machine{Cell: c, addr: netip.MustParseAddrPort(l.Addr().String()), stop: stop}
}

func (w *world) dialer(a *pki.Authority) *Dialer {
	w.t.Helper()
	d, err := newDialer(DialerConfig{Authority: a, Log: w.log}, w.limits)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) target(addr netip.AddrPort) Target {
	return Target{CellID: w.cellID, Addr: addr, Token: w.token, KeyHash: w.spentOn()}
}

// keep keeps a session until the test ends.
func (w *world) keep(d *Dialer, t Target, cellAPI http.Handler) *Session {
	w.t.Helper()
	if cellAPI == nil {
		cellAPI = http.NotFoundHandler()
	}
	s, err := d.Keep(context.Background(), t, cellAPI, w.spend)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

// wait returns what comes from c.
func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	timeout := time.NewTimer(testPatience)
	defer timeout.Stop()
	select {
	case v := <-c:
		return v
	case <-timeout.C:
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// states is an OnState that can be waited on.
type states struct {
	t *testing.T
	c chan state
}

type state struct {
	connected bool
	err       error
}

func newStates(t *testing.T) *states { return &states{t, make(chan state, 1000)} }

func (s *states) note(connected bool, err error) { s.c <- state{connected, err} }

// next is the next state that satisfies f.
func (s *states) next(what string, f func(state) bool) state {
	s.t.Helper()
	for {
		if st := wait(s.t, what, s.c); f(st) {
			return st
		}
	}
}

func isConnected(s state) bool { return s.connected }
func isFailed(s state) bool    { return !s.connected && s.err != nil }

func get(t *testing.T, rt http.RoundTripper, path string) (int, string) {
	t.Helper()
	status, body, err := tryGet(rt, path)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return status, body
}

func tryGet(rt http.RoundTripper, path string) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cell"+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// says answers every request with a text and the path.
func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s over %s", text, r.URL.Path, r.Proto)
	})
}

// watchable answers /watch with a line for each value of its channel, flushed,
// until the request's context ends; then it says so on ended.
type watchable struct {
	lines chan string
	ended chan struct{}
}

func newWatchable() *watchable {
	return &watchable{lines: make(chan string), ended: make(chan struct{}, 100)}
}

func (x *watchable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() { x.ended <- struct{}{} }()
	f := w.(http.Flusher)
	w.WriteHeader(http.StatusOK)
	f.Flush()
	for {
		select {
		case line := <-x.lines:
			fmt.Fprintln(w, line)
			f.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// watch begins a watch, whose lines come from the scanner.
func watch(t *testing.T, rt http.RoundTripper) (*bufio.Reader, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return bufio.NewReader(resp.Body), cancel
}

// wire is a relay whose network can be cut: bytes are dropped and nobody is told.
type wire struct {
	dial func() (net.Conn, error) // its other end

	mu    sync.Mutex
	cut   chan struct{} // closed while cut
	conns []net.Conn
	wg    sync.WaitGroup
}

// newWire is one of TCP, and the address of its near end.
func newWire(t *testing.T, to netip.AddrPort) (*wire, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{dial: func() (net.Conn, error) { return net.Dial("tcp", to.String()) }, cut: make(chan struct{})}
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = w.carry(c)
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.reset()
		w.wg.Wait()
	})
	return w, netip.MustParseAddrPort(l.Addr().String())
}

// pipeEnd is an end of a pipe that says, as that of TCP, when it was closed at this end.
type pipeEnd struct{ net.Conn }

func (e pipeEnd) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = net.ErrClosed
	}
	return n, err
}

// overPipes is a cell, and a dialer whose wire to it are pipes: in a bubble, no limit ends
// while somebody is only slow.
func (w *world) overPipes(h http.Handler) (*Cell, *Dialer, *wire) {
	w.t.Helper()
	cell, err := newCell(CellConfig{UserData: w.userData(), StateDir: w.t.TempDir(), Handler: h, Log: w.log}, w.limits)
	if err != nil {
		w.t.Fatal(err)
	}
	l := newHandoff(&net.TCPAddr{})
	line := &wire{cut: make(chan struct{}), dial: func() (net.Conn, error) {
		here, there := net.Pipe()
		return here, l.give(pipeEnd{there})
	}}
	d, err := newDialer(DialerConfig{Authority: w.authority, Log: w.log, Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
		here, there := net.Pipe()
		return pipeEnd{here}, line.carry(there)
	}}, w.limits)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- cell.Serve(ctx, l) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Serve returned %v", err)
		}
		line.reset()
		line.wg.Wait()
	})
	return cell, d, line
}

// carry joins a connection to one at the other end.
func (w *wire) carry(a net.Conn) error {
	b, err := w.dial()
	if err != nil {
		a.Close()
		return err
	}
	w.mu.Lock()
	w.conns = append(w.conns, a, b)
	cut := w.cut
	w.mu.Unlock()
	w.wg.Go(func() { pump(a, b, cut) })
	w.wg.Go(func() { pump(b, a, cut) })
	return nil
}

// pump copies from a to b; once cut, it reads on and writes nothing.
func pump(a, b net.Conn, cut <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := a.Read(buf)
		select {
		case <-cut:
			if err != nil {
				return // and the other side is not told
			}
			continue
		default:
		}
		if _, werr := b.Write(buf[:n]); err != nil || werr != nil {
			a.Close()
			b.Close()
			return
		}
	}
}

// silence cuts the connections that there are; new ones go through.
func (w *wire) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.cut)
	w.cut = make(chan struct{})
}

// reset closes the connections that there are.
func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// kipTLS is what Kip shows when it dials.
func kipTLS(t *testing.T, a *pki.Authority, protos ...string) *tls.Config {
	t.Helper()
	cert, err := a.Client(0).Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protos, InsecureSkipVerify: true,
		Certificates: []tls.Certificate{*cert},
	}
}
