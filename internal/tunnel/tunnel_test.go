package tunnel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/test/loopback"
)

func TestJoinThenRequestsGoBothWays(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), says("cell API"))
	wait(t, "ready", s.Ready())
	wait(t, "joined", m.Joined())
	if !s.Connected() || s.LastError() != nil || s.Err() != nil || s.LastHeard().IsZero() {
		t.Errorf("connected %v, last error %v, error %v, heard %v", s.Connected(), s.LastError(), s.Err(), s.LastHeard())
	}
	if status, body := get(t, s.Conn(), agentapi.PathStatus); status != 200 || body != "agent "+agentapi.PathStatus+" over HTTP/2.0" {
		t.Errorf("Kip got %d %q", status, body)
	}
	if status, body := get(t, m.RoundTripper(), "/api/v1/pods"); status != 200 || body != "cell API /api/v1/pods over HTTP/2.0" {
		t.Errorf("the cell got %d %q", status, body)
	}
	want, err := pki.KeyHash(m.id.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if w.spentOn() != want || w.spendCalls() != 1 {
		t.Errorf("spent on %q, in %d calls; the cell's key is %q", w.spentOn(), w.spendCalls(), want)
	}
}

func TestSessionEndsWithNothingLeft(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	api := newWatchable()
	s := w.keep(w.dialer(w.authority), w.target(m.addr), api)
	wait(t, "ready", s.Ready())
	get(t, s.Conn(), "/")
	lines, _ := watch(t, m.RoundTripper())
	s.Close()
	if len(api.ended) != 1 {
		t.Error("Close returned while a request was in the cell API")
	}
	if !errors.Is(s.Err(), ErrClosed) || s.Connected() {
		t.Errorf("error %v, connected %v", s.Err(), s.Connected())
	}
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("the cell's watch goes on")
	}
	if _, _, err := tryGet(s.Conn(), "/"); !errors.Is(err, ErrNotConnected) {
		t.Errorf("a request after Close: %v", err)
	}
	s.conns.mu.Lock()
	defer s.conns.mu.Unlock()
	if len(s.conns.open) != 0 {
		t.Errorf("%d connections are open", len(s.conns.open))
	}
}

func TestCloseWaitsForTheCellAPI(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	began := make(chan struct{})
	var s *Session
	var finished atomic.Bool
	s = w.keep(w.dialer(w.authority), w.target(m.addr), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		// It lingers while the session ends around it.
		for !errors.Is(s.LastError(), ErrClosed) {
			runtime.Gosched()
		}
		for range 10000 {
			runtime.Gosched()
		}
		finished.Store(true)
	}))
	wait(t, "ready", s.Ready())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _, _ = tryGet(m.RoundTripper(), "/")
	}()
	wait(t, "the handler to begin", began)
	s.Close()
	if !finished.Load() {
		t.Error("Close returned while a request was in the cell API")
	}
	wait(t, "the cell's request to end", asked)
}

func TestSessionEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	cause := errors.New("Kip stops")
	ctx, cancel := context.WithCancelCause(context.Background())
	s, err := w.dialer(w.authority).Keep(ctx, w.target(m.addr), http.NotFoundHandler(), w.spend)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "ready", s.Ready())
	cancel(cause)
	wait(t, "done", s.Done())
	if !errors.Is(s.Err(), cause) {
		t.Errorf("it ended with %v", s.Err())
	}
}

func TestRestartedAgentIsTheSameCell(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	m := w.start(dir, "", says("agent"))
	st := newStates(t)
	target := w.target(m.addr)
	target.OnState = st.note
	s := w.keep(w.dialer(w.authority), target, says("cell API"))
	st.next("connected", isConnected)
	m.stop()
	if failed := st.next("disconnected", isFailed); s.Connected() || failed.err == nil {
		t.Error("the session did not notice")
	}
	m = w.start(dir, m.addr.String(), says("agent again"))
	st.next("connected again", isConnected)
	select {
	case <-m.Joined():
	default:
		t.Error("the restarted agent does not know that it has joined")
	}
	if _, body := get(t, s.Conn(), "/"); body != "agent again / over HTTP/2.0" {
		t.Errorf("got %q", body)
	}
	if _, body := get(t, m.RoundTripper(), "/"); body != "cell API / over HTTP/2.0" {
		t.Errorf("the cell got %q", body)
	}
	if w.spendCalls() != 1 {
		t.Errorf("the token was spent %d times", w.spendCalls())
	}
}

func TestRestartedKipNeedsNoToken(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	first := w.keep(w.dialer(w.authority), w.target(m.addr), says("first"))
	wait(t, "ready", first.Ready())
	first.Close()

	stored, err := w.authority.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := pki.DecodeAuthorities(stored, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	target := w.target(m.addr)
	target.Token = pki.Token{}
	second := w.keep(w.dialer(read.Signing), target, says("second"))
	wait(t, "ready", second.Ready())
	if _, body := get(t, m.RoundTripper(), "/"); body != "second / over HTTP/2.0" {
		t.Errorf("the cell got %q", body)
	}
	if w.spendCalls() != 1 {
		t.Errorf("the token was spent %d times", w.spendCalls())
	}
}

func TestNewConnectionReplacesTheOld(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	st := newStates(t)
	target := w.target(m.addr)
	target.OnState = st.note
	old := w.keep(w.dialer(w.authority), target, newWatchable())
	st.next("connected", isConnected)
	lines, _ := watch(t, m.RoundTripper())
	// It dials once, so that the two do not take turns.
	d := w.dialer(w.authority)
	d.dial = func() func(context.Context, netip.AddrPort) (net.Conn, error) {
		var used atomic.Bool
		return func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			if used.Swap(true) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		}
	}()
	target = w.target(m.addr)
	target.Token = pki.Token{}
	second := w.keep(d, target, says("second"))
	wait(t, "ready", second.Ready())
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("the watch on the old connection goes on")
	}
	st.next("the old one to notice", isFailed)
	old.Close()
}

func TestCellWaitsForAConnection(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	got := make(chan error, 1)
	go func() {
		_, body, err := tryGet(m.RoundTripper(), "/early")
		if err == nil && body != "cell API /early over HTTP/2.0" {
			err = fmt.Errorf("body %q", body)
		}
		got <- err
	}()
	w.keep(w.dialer(w.authority), w.target(m.addr), says("cell API"))
	if err := wait(t, "the early request", got); err != nil {
		t.Error(err)
	}
}

// closeNoter is a request body that notes that it was closed.
type closeNoter struct {
	io.Reader
	closed atomic.Bool
}

func (c *closeNoter) Close() error { c.closed.Store(true); return nil }

func TestRequestsWithoutAConnectionFail(t *testing.T) {
	w := newWorld(t)
	w.limits.wait = time.Millisecond
	m := w.start(t.TempDir(), "", says("agent"))
	st := newStates(t)
	target := w.target(loopback.Refused(t))
	target.OnState = st.note
	s := w.keep(w.dialer(w.authority), target, nil)
	st.next("a failure", isFailed)

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, tc := range map[string]struct {
		rt  http.RoundTripper
		ctx context.Context
	}{
		"of the cell":                      {m.RoundTripper(), context.Background()},
		"of the cell, with no time":        {m.RoundTripper(), ended},
		"of Kip":                           {s.Conn(), context.Background()},
		"of Kip, with no time for waiting": {s.Conn(), ended},
	} {
		body := &closeNoter{Reader: strings.NewReader("x")}
		req, err := http.NewRequestWithContext(tc.ctx, http.MethodPost, "http://x/", body)
		if err != nil {
			t.Fatal(err)
		}
		_, err = tc.rt.RoundTrip(req)
		if !errors.Is(err, ErrNotConnected) || errors.Is(err, context.Canceled) != (tc.ctx == ended) {
			t.Errorf("a request %s: %v", name, err)
		}
		if !body.closed.Load() {
			t.Errorf("a request %s: its body is open", name)
		}
	}
	if s.LastError() == nil {
		t.Error("the session does not say why it waits")
	}
}

func TestWatchComesLineByLine(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", newWatchable())
	api := newWatchable()
	s := w.keep(w.dialer(w.authority), w.target(m.addr), api)
	wait(t, "ready", s.Ready())
	for name, tc := range map[string]struct {
		rt http.RoundTripper
		on *watchable
	}{
		"of the cell": {m.RoundTripper(), api},
		"of Kip":      {s.Conn(), m.handler.(*watchable)},
	} {
		lines, stop := watch(t, tc.rt)
		for i := range 100 {
			want := fmt.Sprintf("line %d\n", i)
			// Unbuffered, so the next is sent only when this one has come.
			tc.on.lines <- strings.TrimSpace(want)
			if got, err := lines.ReadString('\n'); err != nil || got != want {
				t.Fatalf("%s: %q, %v, want %q", name, got, err, want)
			}
		}
		stop()
		wait(t, "the handler to hear that the watch ended", tc.on.ended)
	}
}

func TestManyRequestsAtOnce(t *testing.T) {
	const n = 200
	w := newWorld(t)
	// Nobody is answered until all have asked: they really are at once.
	together := func() http.Handler {
		var all sync.WaitGroup
		all.Add(n)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			all.Done()
			all.Wait()
			_, _ = w.Write(body)
		})
	}
	m := w.start(t.TempDir(), "", together())
	s := w.keep(w.dialer(w.authority), w.target(m.addr), together())
	wait(t, "ready", s.Ready())
	for name, rt := range map[string]http.RoundTripper{"of Kip": s.Conn(), "of the cell": m.RoundTripper()} {
		got := make(chan error, n)
		for i := range n {
			go func() {
				want := strings.Repeat(fmt.Sprint(i, " "), 5000)
				ctx, cancel := context.WithTimeout(context.Background(), testPatience)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://x/", strings.NewReader(want))
				if err != nil {
					got <- err
					return
				}
				resp, err := rt.RoundTrip(req)
				if err != nil {
					got <- err
					return
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err == nil && string(body) != want {
					err = fmt.Errorf("request %d was answered with %d bytes of another", i, len(body))
				}
				got <- err
			}()
		}
		for range n {
			if err := wait(t, "an answer", got); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	s.conns.mu.Lock()
	defer s.conns.mu.Unlock()
	if len(s.conns.open) != 2 {
		t.Errorf("%d connections are open for it, not 2", len(s.conns.open))
	}
}

func TestBothEndsNoticeABrokenConnectionAndReconnect(t *testing.T) {
	t.Run("reset", func(t *testing.T) {
		w := newWorld(t)
		agent := newWatchable()
		m := w.start(t.TempDir(), "", agent)
		line, addr := newWire(t, m.addr)
		w.bothNotice(m.Cell, w.dialer(w.authority), w.target(addr), agent, line.reset)
	})
	// Pings are missed by nobody who is only slow: the time is that of a bubble.
	t.Run("silent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.limits.patience = w.limits.pingTimeout
			agent := newWatchable()
			cell, d, line := w.overPipes(agent)
			w.bothNotice(cell, d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), agent, line.silence)
		})
	})
}

// bothNotice breaks a connection with a watch in each direction, and again that which
// takes its place.
func (w *world) bothNotice(cell *Cell, d *Dialer, target Target, agent *watchable, breakIt func()) {
	t := w.t
	t.Helper()
	st := newStates(t)
	target.OnState = st.note
	api := newWatchable()
	s := w.keep(d, target, api)
	st.next("connected", isConnected)
	for range 3 {
		fromKip, _ := watch(t, cell.RoundTripper())
		fromCell, _ := watch(t, s.Conn())
		api.lines <- "before"
		if got, err := fromKip.ReadString('\n'); err != nil || got != "before\n" {
			t.Fatalf("%q, %v", got, err)
		}
		breakIt()
		if got, err := fromKip.ReadString('\n'); err == nil {
			t.Fatalf("the cell's watch goes on: %q", got)
		}
		if got, err := fromCell.ReadString('\n'); err == nil {
			t.Fatalf("Kip's watch goes on: %q", got)
		}
		wait(t, "the cell API's handler to end", api.ended)
		wait(t, "the agent's handler to end", agent.ended)
		st.next("Kip to notice", isFailed)
		st.next("connected again", isConnected)
		if !s.Connected() {
			t.Fatal("OnState and Connected differ")
		}
	}
	s.conns.mu.Lock()
	defer s.conns.mu.Unlock()
	if len(s.conns.open) > 2 {
		t.Errorf("%d connections are open after reconnecting", len(s.conns.open))
	}
}

// echo hijacks an upgraded connection and sends back what it gets.
func echo(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" || r.ProtoMajor != 1 {
			http.Error(w, "no upgrade", http.StatusUpgradeRequired)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_ = rw.Flush()
		_, _ = io.Copy(c, rw)
	})
}

func TestUpgradesPassAReverseProxy(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", echo(t))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", s.Ready())
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) {},
		Transport: s.Conn(),
	})
	defer front.Close()
	for _, proto := range []string{"websocket", "SPDY/3.1"} {
		c, err := net.Dial("tcp", front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET %s/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", agentapi.PathKubelet, proto)
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != proto {
			t.Fatalf("%s: %s", proto, resp.Status)
		}
		for i := range 50 {
			want := fmt.Sprintf("hello %d\n", i)
			if _, err := io.WriteString(c, want); err != nil {
				t.Fatal(err)
			}
			if got, err := r.ReadString('\n'); err != nil || got != want {
				t.Fatalf("%s: %q, %v", proto, got, err)
			}
		}
	}
	// A plain request beside it is multiplexed, and what is no upgrade is
	// answered as such.
	if status, body := get(t, s.Conn(), "/"); status != http.StatusUpgradeRequired {
		t.Errorf("%d %s", status, body)
	}
	// The upgraded connections end with the session.
	s.Close()
	m.stop()
}

func TestUpgradeEndsWhenTheCellIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, d, line := w.overPipes(echo(t))
		s := w.keep(d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), nil)
		req, err := http.NewRequest(http.MethodGet, "http://x/attach", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
		resp, err := s.Conn().RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		line.silence()
		ended := make(chan error, 1)
		go func() {
			_, err := resp.Body.Read(make([]byte, 1))
			ended <- err
		}()
		// It has no pings, and TCP would notice much later.
		if err := wait(t, "the upgraded connection to end", ended); err == nil {
			t.Error("something was read")
		}
	})
}

func TestUpgradeThatIsRefusedIsAnAnswer(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such container", http.StatusNotFound)
	}))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	req, err := http.NewRequest(http.MethodPost, "http://x/exec", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "keep-alive, Upgrade")
	req.Header.Set("Upgrade", "SPDY/3.1")
	resp, err := s.Conn().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 404 || string(body) != "no such container\n" {
		t.Errorf("%d %q %v", resp.StatusCode, body, err)
	}
}

func TestABadTargetIsNamed(t *testing.T) {
	w := newWorld(t)
	d := w.dialer(w.authority)
	good := netip.MustParseAddrPort("127.0.0.1:1")
	for name, tc := range map[string]struct {
		target Target
		api    http.Handler
		spend  OnSpend
		want   string
	}{
		"cell ID":    {Target{CellID: "C 1", Addr: good}, says(""), w.spend, `cell ID "C 1": it must be`},
		"no address": {Target{CellID: "c-1"}, says(""), w.spend, `cell c-1: address "invalid AddrPort": it must be`},
		"no port": {Target{CellID: "c-1", Addr: netip.AddrPortFrom(good.Addr(), 0)}, says(""), w.spend,
			`cell c-1: address "127.0.0.1:0": it must be`},
		"no handler": {Target{CellID: "c-1", Addr: good}, nil, w.spend, "cell c-1: it needs a handler"},
		"no OnSpend": {Target{CellID: "c-1", Addr: good}, says(""), nil, "cell c-1: it needs an OnSpend"},
	} {
		s, err := d.Keep(context.Background(), tc.target, tc.api, tc.spend)
		if err == nil {
			t.Errorf("%s: accepted", name)
			s.Close()
			continue
		}
		if !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestBadUserDataIsNamed(t *testing.T) {
	w := newWorld(t)
	good := w.userData()
	for name, change := range map[string]func(*agentapi.UserData){
		"cell ID": func(u *agentapi.UserData) { u.CellID = "../x" },
		"caHash":  func(u *agentapi.UserData) { u.CAHash = "abc" },
		"token":   func(u *agentapi.UserData) { u.Token = "abc" },
	} {
		ud := good
		change(&ud)
		_, err := NewCell(CellConfig{UserData: ud, StateDir: t.TempDir(), Handler: says(""), Log: w.log})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIdentityIsPrivateAndSurvives(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := w.start(dir, "", says("agent"))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", s.Ready())
	for name, want := range map[string]os.FileMode{"": 0o700, keyFile: 0o600, certificateFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%q has mode %v", name, info.Mode().Perm())
		}
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
	again, err := openIdentity(dir, w.cellID)
	if err != nil {
		t.Fatal(err)
	}
	if !again.key.Equal(m.id.key) || again.certificate() == nil {
		t.Error("the identity is another after a restart")
	}
}

func TestIdentityOfAnotherMachineIsDropped(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	m := w.start(dir, "", says("agent"))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "ready", s.Ready())
	// As if the disk had become an image, and that another cell.
	clone, err := openIdentity(dir, "c-2")
	if err != nil {
		t.Fatal(err)
	}
	if clone.key.Equal(m.id.key) || clone.certificate() != nil {
		t.Error("the clone has the other's identity")
	}
}

func TestIdentityThatIsDamagedIsAnError(t *testing.T) {
	for _, name := range []string{keyFile, certificateFile} {
		w := newWorld(t)
		dir := t.TempDir()
		m := w.start(dir, "", says("agent"))
		s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
		wait(t, "ready", s.Ready())
		if err := os.WriteFile(filepath.Join(dir, name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openIdentity(dir, w.cellID); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBackoffIsFastFirstAndPatientLater(t *testing.T) {
	var r retries
	most := func() float64 { return 1 }
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, want := range []time.Duration{
		20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond, 160 * time.Millisecond,
		320 * time.Millisecond, 640 * time.Millisecond, time.Second, time.Second,
	} {
		if got := r.next(at, most); got != want {
			t.Errorf("wait %d is %v, want %v", i, got, want)
		}
		at = at.Add(want)
	}
	at = at.Add(patience)
	for i, want := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second} {
		if got := r.next(at, most); got != want {
			t.Errorf("late wait %d is %v, want %v", i, got, want)
		}
	}
}
