package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/stall"
)

// newPipe returns both ends of a connection, the first with its owner.
func newPipe(t *testing.T) (*conn, net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	c, err := new(conns).add(here)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); there.Close() })
	return c, there
}

func isClosed(c *conn) bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func TestASilentConnectionIsClosedAndOneThatIsHeardIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent, _ := newPipe(t)
		heard, there := newPipe(t)
		silent.judge(nil, 15*time.Second)
		heard.judge(nil, 15*time.Second)
		for n := range 5 {
			time.Sleep(14 * time.Second)
			if got := isClosed(silent); got != (n > 0) {
				t.Fatalf("after %d s without a byte it is closed: %v", 14*(n+1), got)
			}
			go func() { _, _ = there.Write([]byte("x")) }()
			if _, err := heard.Read(make([]byte, 1)); err != nil {
				t.Fatalf("after %d s: %v", 14*(n+1), err)
			}
		}
	})
}

func TestALateKipClosesNoSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newPipe(t)
		late := stall.New(clock.RealClock{}) // and looks only when it runs
		c.judge(late, 15*time.Second)
		time.Sleep(5 * time.Minute)
		if isClosed(c) {
			t.Fatal("closed while Kip was late")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = late.Run(ctx) }()
		time.Sleep(14 * time.Second)
		if isClosed(c) {
			t.Fatal("closed before the cell had its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !isClosed(c) {
			t.Error("a connection that is silent while Kip is on time stays")
		}
	})
}

// stoppable are pipes whose one end can be stopped: it reads and writes nothing.
type stoppable struct {
	mu   sync.Mutex
	goOn chan struct{} // nil while it is not stopped
}

func (s *stoppable) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.goOn = make(chan struct{})
}

func (s *stoppable) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.goOn)
	s.goOn = nil
}

func (s *stoppable) wait() {
	s.mu.Lock()
	goOn := s.goOn
	s.mu.Unlock()
	if goOn != nil {
		<-goOn
	}
}

// stoppableConn is an end of a pipe whose writer is not kept waiting, as that of TCP.
type stoppableConn struct {
	net.Conn
	end    *stoppable
	writes chan []byte
	done   chan struct{}
	once   *sync.Once
}

func newStoppableConn(c net.Conn, end *stoppable) stoppableConn {
	s := stoppableConn{Conn: c, end: end, writes: make(chan []byte, 1000), done: make(chan struct{}), once: new(sync.Once)}
	go func() {
		for {
			select {
			case p := <-s.writes:
				end.wait()
				_, _ = c.Write(p)
			case <-s.done:
				return
			}
		}
	}()
	return s
}

func (c stoppableConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

func (c stoppableConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.end.wait()
	return n, err
}

func (c stoppableConn) Write(p []byte) (int, error) {
	select {
	case c.writes <- slices.Clone(p):
		return len(p), nil
	case <-c.done:
		return 0, net.ErrClosed
	}
}

func TestAStoppedKipFindsItsConnectionsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cell, err := newCell(CellConfig{UserData: w.userData(), StateDir: t.TempDir(), Handler: says("agent"), Log: w.log}, w.limits)
		if err != nil {
			t.Fatal(err)
		}
		l := newHandoff(&net.TCPAddr{})
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- cell.Serve(ctx, l) }()
		var kip, agent stoppable // the agent is never stopped
		var dials int
		late := stall.New(clock.RealClock{})
		d, err := NewDialer(DialerConfig{Authority: w.authority, Log: w.log, Late: late,
			Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
				dials++
				here, there := net.Pipe()
				return newStoppableConn(here, &kip), l.give(newStoppableConn(there, &agent))
			}})
		if err != nil {
			t.Fatal(err)
		}
		measure := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _ = late.Run(ctx) }()
			return cancel
		}
		stopMeter := measure()
		s := w.keep(d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), says("cell API"))
		<-s.Ready()
		if _, got := get(t, s.Conn(), "/"); got == "" {
			t.Fatal("no answer of the agent")
		}
		time.Sleep(time.Minute)
		before := dials
		for range 3 {
			stopMeter()
			kip.stop()
			time.Sleep(time.Minute)
			kip.resume()
			stopMeter = measure()
			time.Sleep(time.Minute)
		}
		if _, got := get(t, cell.RoundTripper(), "/"); got == "" || !s.Connected() {
			t.Errorf("connected %v, the cell API said %q", s.Connected(), got)
		}
		if dials != before {
			t.Errorf("%d connections more were made, want none", dials-before)
		}
		stopMeter()
		s.Close()
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestThoseThatMatterMostConnectFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(nil)
		turns.limiter = rate.NewLimiter(1, 1)
		turns.limiter.AllowN(time.Now(), 1)
		now := time.Now()
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		for _, who := range []struct {
			name string
			place
		}{
			{"idle, the second", place{rank: 2}},
			{"idle, the third", place{rank: 2}},
			{"idle, failing", place{rank: 2, failing: true}},
			{"booting", place{rank: 1}},
			{"bound, failing", place{failing: true}},
			{"bound, heard lately", place{heard: now.Add(-time.Second)}},
			{"bound, heard before", place{heard: now.Add(-10 * time.Second)}},
			{"idle, silent for long", place{rank: rankUrgent}},
			{"a request", place{rank: rankRequest}},
		} {
			wg.Go(func() {
				if err := turns.wait(t.Context(), who.place); err != nil {
					t.Errorf("%s: %v", who.name, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, who.name)
			})
			synctest.Wait()
		}
		wg.Wait()
		want := []string{"a request", "idle, silent for long", "bound, heard before", "bound, heard lately", "bound, failing", "booting",
			"idle, the second", "idle, the third", "idle, failing"}
		if !slices.Equal(order, want) {
			t.Errorf("in this order: %q, want %q", order, want)
		}
	})
}

func TestConnectionsBeginAtABoundedRateAndHardlyAnyWhileKipIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := func(late *stall.Meter) (n int) {
			turns := newTurns(late)
			turns.limiter = rate.NewLimiter(100, 20)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 5000 {
				wg.Go(func() {
					if turns.wait(ctx, place{}) == nil {
						mu.Lock()
						defer mu.Unlock()
						n++
					}
				})
			}
			wg.Wait()
			if left := len(turns.waiting); left != 0 || turns.timer != nil {
				t.Errorf("%d still wait, though all have given up; timer %v", left, turns.timer)
			}
			return n
		}
		if n := begun(nil); n < 1000 || n > 1021 {
			t.Errorf("%d connections began in 10 s, want 1000 and a burst of 20", n)
		}
		late := stall.New(clock.RealClock{})
		time.Sleep(time.Minute) // it does not run: that is, it is late
		if n := begun(late); n < 40 || n > 60 {
			t.Errorf("%d connections began in 10 s while Kip was late, want 50", n)
		}
	})
}

func TestASessionThatWaitsForItsTurnIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d, err := NewDialer(DialerConfig{Authority: w.authority, Log: w.log,
			Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, errors.New("no route") }})
		if err != nil {
			t.Fatal(err)
		}
		d.turns.limiter = rate.NewLimiter(rate.Every(10*time.Second), 1)
		d.turns.limiter.AllowN(time.Now(), 1)
		failed := newStates(t)
		target := w.target(netip.MustParseAddrPort("10.0.0.1:6421"))
		target.OnState = failed.note
		s := w.keep(d, target, nil)
		if got := s.HeldBack(); !got.IsZero() {
			t.Errorf("held back %v before it had to wait", got)
		}
		time.Sleep(9 * time.Second)
		if got := s.HeldBack(); !got.Equal(time.Now()) {
			t.Errorf("held back %v, want now", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		until := time.Now()
		d.turns.mu.Lock()
		d.turns.limiter.SetLimit(rate.Inf)
		d.turns.mu.Unlock()
		time.Sleep(20 * time.Second) // the next turn was promised for in 10 s
		for range len(failed.c) {
			<-failed.c
		}
		if got := s.HeldBack(); got.Before(until) || time.Since(got) < 5*time.Second {
			t.Errorf("held back until %s ago, want until it could connect: a machine that is not there is not Kip's fault", time.Since(got))
		}
		s.Close()
	})
}

// nowhere accepts each connection and says nothing.
func nowhere(t *testing.T, w *world) *Dialer {
	t.Helper()
	d, err := NewDialer(DialerConfig{Authority: w.authority, Log: w.log,
		Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
			here, _ := net.Pipe()
			return here, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestASessionThatWaitsForItsHandshakeIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := nowhere(t, w)
		for range cap(d.handshakes) {
			d.handshakes <- struct{}{}
		}
		s := w.keep(d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), nil)
		time.Sleep(time.Minute)
		if got := s.HeldBack(); !got.Equal(time.Now()) {
			t.Errorf("held back %v, want now: all handshakes are others'", got)
		}
		s.Close()
	})
}

func TestMachinesThatStallInTLSLeaveRoomForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := nowhere(t, w)
		all := make([]*Session, 10*cap(d.handshakes))
		for n := range all {
			all[n] = w.keep(d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), nil)
		}
		time.Sleep(5 * time.Minute) // each has stalled once
		most := 0
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			most = max(most, len(d.handshakes))
		}
		if want := cap(d.handshakes) / stallingShare; most != want {
			t.Errorf("they have %d of %d handshakes, want %d", most, cap(d.handshakes), want)
		}
		for n, s := range all {
			if since := time.Since(s.HeldBack()); since < time.Minute {
				t.Fatalf("session %d was held back %s ago: it is its machine that lets it wait", n, since)
			}
		}
		for _, s := range all {
			s.Close()
		}
	})
}

// As who may exec in its pod can have it, with a machine that is heard and lets TLS for requests wait.
func TestRequestsOfOneCellLeaveRoomForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := nowhere(t, w)
		s := w.keep(d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), nil)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		ask := func() {
			for range 10 * cap(d.handshakes) {
				all.Go(func() {
					req := httptest.NewRequestWithContext(ctx, http.MethodPost, "https://cell/exec", nil)
					if resp, err := s.upgrade(req); err == nil {
						resp.Body.Close()
						t.Error("a machine that says nothing has answered")
					}
				})
			}
		}
		time.Sleep(time.Second)
		own := len(d.handshakes) // of the session itself
		s.stalling.Store(false)  // as if that had succeeded
		ask()
		time.Sleep(100 * time.Millisecond)
		if n := len(d.handshakes) - own; n != upgradesAtOnce {
			t.Errorf("its requests have %d handshakes, want %d", n, upgradesAtOnce)
		}
		time.Sleep(d.limits.handshake)
		s.stalling.Store(false)
		time.Sleep(100 * time.Millisecond)
		if n := len(d.stalling); n < upgradesAtOnce {
			t.Errorf("%d of its requests are among those that stall, want %d", n, upgradesAtOnce)
		}
		cancel()
		all.Wait()
		s.Close()
	})
}

// As who ends a kubectl logs during the handshake: nobody knows yet whether the machine lets it wait.
func TestARequestThatIsGivenUpDoesNotSayThatItsMachineStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.keep(nowhere(t, w), w.target(netip.MustParseAddrPort("10.0.0.1:6421")), nil)
		defer s.Close()
		time.Sleep(time.Second)
		for after, stalls := range map[time.Duration]bool{time.Second: false, time.Hour: true} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			resp, err := s.upgrade(httptest.NewRequestWithContext(ctx, http.MethodGet, "https://cell/logs", nil))
			cancel()
			if err == nil {
				resp.Body.Close()
				t.Error("a machine that says nothing has answered")
			}
			if got := s.requestsStall.Swap(false); got != stalls {
				t.Errorf("of a request that is given up after %s: stalls is %t, want %t", after, got, stalls)
			}
		}
	})
}

func TestASessionWhoseMachineIsNotThereIsNotHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d, err := NewDialer(DialerConfig{Authority: w.authority, Log: w.log,
			Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, errors.New("no route") }})
		if err != nil {
			t.Fatal(err)
		}
		s := w.keep(d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), nil)
		time.Sleep(time.Second)
		d.turns.mu.Lock()
		d.turns.limiter.SetLimit(rate.Every(20 * time.Second)) // as there are thousands of them
		d.turns.mu.Unlock()
		time.Sleep(5 * time.Minute)
		if got := s.HeldBack(); !got.IsZero() {
			t.Errorf("held back %s ago: its machine was not there before", time.Since(got))
		}
		s.Close()
	})
}

// A connection that waited for its handshake is as old to the cell, which does not
// wait for ever.
func TestAConnectionThatWaitedTooLongForItsHandshakeIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		dialled := make(chan net.Conn, 10)
		d, err := NewDialer(DialerConfig{Authority: w.authority, Log: w.log,
			Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
				here, there := net.Pipe()
				dialled <- there
				return here, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		for range cap(d.handshakes) {
			d.handshakes <- struct{}{}
		}
		s := w.keep(d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), nil)
		time.Sleep(w.limits.turn + time.Second)
		if n := len(dialled); n != 1 {
			t.Fatalf("%d connections, want the one that waits", n)
		}
		<-d.handshakes
		synctest.Wait()
		if n := len(dialled); n != 2 {
			t.Fatalf("%d connections, want another in place of the one that waited", n)
		}
		if _, err := (<-dialled).Read(make([]byte, 1)); err == nil {
			t.Error("the one that waited is still open")
		}
		fresh := <-dialled
		if _, err := fresh.Read(make([]byte, 1)); err != nil {
			t.Errorf("no handshake began: %v", err)
		}
		fresh.Close()
		s.Close()
	})
}

// resumes dials the cell once more and says whether TLS was resumed.
func resumes(t *testing.T, s *Session, tickets tls.ClientSessionCache) (bool, error) {
	t.Helper()
	tc, nc, err := s.dial(t.Context(), protoHTTP1, place{}, credentials{authority: s.credentials().authority, tickets: tickets}, s.verify)
	if err != nil {
		return false, err
	}
	defer nc.Close()
	// The refusal of the other end, if any, comes after the handshake.
	fmt.Fprintf(tc, "GET / HTTP/1.1\r\nHost: cell\r\n\r\n")
	if _, err := tc.Read(make([]byte, 1)); err != nil {
		return false, err
	}
	return tc.ConnectionState().DidResume, nil
}

func TestTLSIsResumedAndWhoItIsIsProvenAllTheSame(t *testing.T) {
	w := newWorld(t)
	dir, keys := t.TempDir(), [][32]byte{{1}}
	start := func(addr, caHash string) *machine {
		t.Helper()
		ud := w.userData()
		if caHash != "" {
			ud.CAHash = caHash
		}
		// The ticket keys of an earlier process.
		return w.startWith(ud, dir, addr, says("agent"), func(c *Cell) { c.tls.SetSessionTicketKeys(keys) })
	}
	m := start("", "")
	s := w.keep(w.dialer(w.authority), w.target(m.addr), says("cell API"))
	wait(t, "the join", s.Ready())
	get(t, m.RoundTripper(), "/") // what came before it has the ticket
	if resumed, err := resumes(t, s, s.credentials().tickets); err != nil || !resumed {
		t.Fatalf("resumed %v, %v: the second connection should resume the first", resumed, err)
	}

	// Kip's end: another key is recorded.
	s.mu.Lock()
	known := s.keyHash
	s.keyHash = "another"
	s.mu.Unlock()
	if _, err := resumes(t, s, s.credentials().tickets); !errors.Is(err, ErrKeyChanged) {
		t.Errorf("a resumed connection of another key: %v, want %v", err, ErrKeyChanged)
	}
	s.mu.Lock()
	s.keyHash = known
	s.mu.Unlock()
	for range 2 { // the first has no ticket: one that failed is thrown away
		if _, err := resumes(t, s, s.credentials().tickets); err != nil {
			t.Fatal(err)
		}
	}

	// The cell's end: the ticket is as good, but Kip's authority is not the cell's.
	addr := m.addr.String()
	s.cancel(ErrClosed)
	m.stop()
	other, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	again := w.keep(w.dialer(w.authority), w.target(m.addr), says("cell API"))
	strict := start(addr, other.Hash())
	if resumed, err := resumes(t, again, s.credentials().tickets); err == nil {
		t.Errorf("a cell of another authority accepted a connection, resumed: %v", resumed)
	}
	strict.stop()
	start(addr, "")
	if _, err := resumes(t, again, s.credentials().tickets); err != nil {
		t.Errorf("its own authority's is refused: %v", err)
	}
}

func TestARestartedAgentMakesAFullHandshake(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	m := w.start(dir, "", says("agent"))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), says("cell API"))
	wait(t, "the join", s.Ready())
	get(t, m.RoundTripper(), "/")
	m.stop()
	w.start(dir, m.addr.String(), says("agent"))
	if resumed, err := resumes(t, s, s.credentials().tickets); err != nil || resumed {
		t.Errorf("resumed %v, %v: another process has other ticket keys", resumed, err)
	}
	if resumed, err := resumes(t, s, s.credentials().tickets); err != nil || !resumed {
		t.Errorf("resumed %v, %v: the next should resume", resumed, err)
	}
}

// A join shows no certificate of Kip's authority, so nothing of it is resumed.
func TestAJoinGivesNoTicket(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", says("agent"))
	cfg := kipTLS(t, w.authority, protoJoin)
	tickets := &countedTickets{ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	cfg.ClientSessionCache, cfg.ServerName = tickets, "cell"
	tc, err := tls.Dial("tcp", m.addr.String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer tc.Close()
	state := tc.ConnectionState()
	g := &granter{authority: w.authority, cellID: w.cellID, token: w.token, spend: func(string) error { return nil }}
	if err := g.run(tc, &state); err != nil {
		t.Fatal(err)
	}
	if tickets.puts != 0 {
		t.Errorf("a join gave %d tickets", tickets.puts)
	}
}

type countedTickets struct {
	tls.ClientSessionCache
	puts int
}

func (c *countedTickets) Put(key string, s *tls.ClientSessionState) {
	if s != nil {
		c.puts++
	}
	c.ClientSessionCache.Put(key, s)
}

// Bulk that the other end does not take waits where a ping can overtake it.
func TestTheKernelHoldsLittleThatIsNotSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := new(conns).add(here)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := here.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	if cerr := raw.Control(func(fd uintptr) {
		got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	if got != maxUnsent {
		t.Errorf("the kernel may hold %d unsent bytes, want %d", got, maxUnsent)
	}
}
