package hollow

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
)

// benchmarkKip in the environment makes this binary Kip's end of a benchmark with
// as many cells as it says, so that what the hollow end costs is measured alone.
const benchmarkKip = "HOLLOW_BENCHMARK_KIP"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(benchmarkKip)); err == nil {
		if err := serveBenchmarkKip(n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// serveBenchmarkKip writes the cells' user data, and does a step for each line that
// it reads.
func serveBenchmarkKip(n int) error {
	k, err := newStubKip(n, nil)
	if err != nil {
		return err
	}
	defer k.close()
	out, in := json.NewEncoder(os.Stdout), bufio.NewScanner(os.Stdin)
	if err := out.Encode(k.users); err != nil {
		return err
	}
	for in.Scan() {
		err := k.step(in.Text())
		if err != nil {
			return err
		}
		if err := out.Encode("done"); err != nil {
			return err
		}
	}
	return in.Err()
}

// stubKip is real tunnels with a cell API that is no more than what a hollow cell
// asks.
type stubKip struct {
	users    []agentapi.UserData
	tokens   []pki.Token
	hashes   []string
	dialer   *tunnel.Dialer
	sessions []*tunnel.Session
	leases   []chan struct{} // a lease was renewed since the last step
}

func newStubKip(n int, dial func(context.Context, netip.AddrPort) (net.Conn, error)) (*stubKip, error) {
	authority, err := pki.New(time.Now)
	if err != nil {
		return nil, err
	}
	k := &stubKip{hashes: make([]string, n), sessions: make([]*tunnel.Session, n), leases: make([]chan struct{}, n)}
	k.dialer, err = tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: slog.New(slog.DiscardHandler), Dial: dial})
	if err != nil {
		return nil, err
	}
	for i := range n {
		k.tokens = append(k.tokens, pki.NewToken())
		k.users = append(k.users, agentapi.UserData{CellID: fmt.Sprintf("c-%d", i), CAHash: authority.Hash(), Token: k.tokens[i].Reveal()})
	}
	return k, nil
}

func benchmarkIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 101, byte(i >> 8), byte(i)}) }

// step does one thing with all cells: "join" has them joined, configured and
// reporting, "reconnect" leaves each with the one connection of an idle cell.
func (k *stubKip) step(what string) error {
	dial := func(i int) error {
		target := tunnel.Target{CellID: k.users[i].CellID, Addr: netip.AddrPortFrom(benchmarkIP(i), agentapi.Port), Token: k.tokens[i],
			KeyHash: k.hashes[i]}
		if what != "join" {
			target.Token = pki.Token{}
		}
		k.leases[i] = make(chan struct{}, 1)
		var err error
		k.sessions[i], err = k.dialer.Keep(context.Background(), target, stubAPI{k.leases[i]}, func(_ context.Context, hash string) error {
			k.hashes[i] = hash
			return nil
		})
		return err
	}
	if what == "reconnect" {
		k.close()
	}
	for i := range k.users {
		if err := dial(i); err != nil {
			return err
		}
	}
	for i, s := range k.sessions {
		<-s.Ready()
		if what == "join" {
			// On a busy host a handshake may take longer than either end waits.
			err := k.configure(i)
			for retries := 0; err != nil && retries < 10; retries++ {
				err = k.configure(i)
			}
			if err != nil {
				return err
			}
		}
	}
	for _, renewed := range k.leases {
		<-renewed
	}
	return nil
}

func (k *stubKip) configure(i int) error {
	agent := agentapi.Client{Conn: k.sessions[i].Conn()}
	_, err := agent.PutConfig(context.Background(), agentapi.Config{NodeName: nodeName, NodeIP: benchmarkIP(i), PodIP: benchmarkIP(i)})
	if err != nil {
		return fmt.Errorf("configure cell %d: %w", i, err)
	}
	return nil
}

func (k *stubKip) close() {
	var all sync.WaitGroup
	for _, s := range k.sessions {
		if s != nil {
			all.Go(s.Close)
		}
	}
	all.Wait()
}

// stubAPI answers a hollow cell without a pod.
type stubAPI struct{ renewed chan struct{} }

func (a stubAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Query().Get("watch") == "true":
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			fmt.Fprintln(w,
				`{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case strings.Contains(r.URL.Path, "/leases/"):
		fmt.Fprint(w, `{"metadata":{"uid":"lease-uid"}}`)
		select {
		case a.renewed <- struct{}{}:
		default:
		}
	default:
		fmt.Fprint(w, `{}`)
	}
}

// held is what this process holds now.
func held() (bytes, goroutines float64) {
	// The second empties the pools; each halves a stack that was once deep, as
	// that of a handshake.
	for range 6 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse), float64(runtime.NumGoroutine())
}

// BenchmarkIdleCell reports what a cell costs: while Kip's connection for its
// requests is open, as it is for 90 s after each, and without. "hollow" is this
// end alone, the other being another process; "both" is both ends.
func BenchmarkIdleCell(b *testing.B) {
	cells := []int{200, 1000}
	if testing.Short() {
		cells = []int{20} // to see that it works; 200 say no more of that
	}
	for _, network := range []string{"TCP", "Network"} {
		for _, ends := range []string{"hollow", "both"} {
			for _, n := range cells {
				if network == "Network" && ends == "hollow" {
					continue // it does not leave the process
				}
				b.Run(fmt.Sprintf("%s/%s/%d", network, ends, n), func(b *testing.B) {
					for b.Loop() {
						benchmarkCells(b, n, network, ends)
					}
				})
			}
		}
	}
}

func benchmarkCells(b *testing.B, n int, network, ends string) {
	cfg := Config{}
	var step func(string)
	var users []agentapi.UserData
	var closeKip func()
	before, gBefore := held()
	if ends == "hollow" {
		users, step, closeKip = startBenchmarkKip(b, n)
		before, gBefore = held()
	} else {
		var dial func(context.Context, netip.AddrPort) (net.Conn, error)
		if network == "Network" {
			between := &Network{}
			cfg.Listen, dial = between.Listen, between.Dial
		}
		k, err := newStubKip(n, dial)
		if err != nil {
			b.Fatal(err)
		}
		users, closeKip = k.users, k.close
		step = func(what string) {
			if err := k.step(what); err != nil {
				b.Fatal(err)
			}
		}
	}
	fleet, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var boots sync.WaitGroup
	for i, u := range users {
		data := userDataOf(b, u)
		boots.Go(func() {
			fleet.Boot(ctx, cloud.Instance{ID: fmt.Sprintf("i-%d", i), ManagementIP: benchmarkIP(i)}, data)
		})
	}
	began := time.Now()
	step("join")
	took := time.Since(began)
	used, gUsed := held()
	step("reconnect")
	idle, gIdle := held()
	each := float64(n)
	b.ReportMetric((used-before)/each, "bytes/used-cell")
	b.ReportMetric((gUsed-gBefore)/each, "goroutines/used-cell")
	b.ReportMetric((idle-before)/each, "bytes/idle-cell")
	b.ReportMetric((gIdle-gBefore)/each, "goroutines/idle-cell")
	b.ReportMetric(each/took.Seconds(), "joins/s")
	cancel()
	boots.Wait()
	closeKip()
	if err := fleet.Close(); err != nil {
		b.Fatal(err)
	}
}

// startBenchmarkKip starts Kip's end as a process of its own.
func startBenchmarkKip(b *testing.B, n int) (users []agentapi.UserData, step func(string), stop func()) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", benchmarkKip, n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	out := json.NewDecoder(stdout)
	read := func(v any) {
		if err := out.Decode(v); err != nil {
			b.Fatalf("Kip's process: %v", err)
		}
	}
	read(&users)
	step = func(what string) {
		if _, err := fmt.Fprintln(in, what); err != nil {
			b.Fatal(err)
		}
		var done string
		read(&done)
	}
	return users, step, func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	}
}

// BenchmarkListeners reports what a TCP listener of its own costs a cell in this
// process; the kernel's part of it is not in these numbers.
func BenchmarkListeners(b *testing.B) {
	const n = 1000
	for b.Loop() {
		before, _ := held()
		all := make([]net.Listener, n)
		for i := range all {
			l, err := net.Listen("tcp", netip.AddrPortFrom(benchmarkIP(i), agentapi.Port).String())
			if err != nil {
				b.Fatal(err)
			}
			all[i] = l
		}
		after, _ := held()
		b.ReportMetric((after-before)/n, "bytes/listener")
		for _, l := range all {
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
