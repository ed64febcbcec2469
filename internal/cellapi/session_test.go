package cellapi

import (
	"context"
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
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/internal/watches"
)

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, errors.New("refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// overSession calls f in a bubble, with a cell whose requests go by a real session of
// the tunnel: TLS, HTTP/2, and the API behind it.
func overSession(t *testing.T, f func(t *testing.T, c *Cell, rt http.RoundTripper)) {
	synctest.Test(t, func(t *testing.T) {
		unused := &rest.Config{Host: "http://127.0.0.1:1"}
		server, err := New(Config{
			NodeName: nodeName, Node: unused, Own: unused,
			Pods: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{}),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer server.tasks.End()
		c := server.AddCell("c1", info)
		authority, err := pki.New(time.Now)
		if err != nil {
			t.Fatal(err)
		}
		token, log := pki.NewToken(), slog.New(slog.DiscardHandler)
		agent, err := tunnel.NewCell(tunnel.CellConfig{
			UserData: agentapi.UserData{CellID: "c1", CAHash: authority.Hash(), Token: token.Reveal()},
			StateDir: t.TempDir(), Handler: http.NotFoundHandler(), Log: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		var running sync.WaitGroup
		running.Go(func() { _ = agent.Serve(ctx, l) })
		dialer, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: log, Dial: l.dial})
		if err != nil {
			t.Fatal(err)
		}
		session, err := dialer.Keep(ctx, tunnel.Target{CellID: "c1", Addr: netip.MustParseAddrPort("10.0.0.5:6421"), Token: token}, c,
			func(context.Context, string) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		<-session.Ready()
		f(t, c, agent.RoundTripper())
		session.Close()
		cancel()
		running.Wait()
	})
}

// holds is what the cell has open.
func (b *budget) holds() (open, watching int, bodies int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open, b.watching, b.bodies
}

// trickle is a body of a byte a second.
type trickle struct{ ctx context.Context }

func (b trickle) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
		p[0] = ' '
		return 1, nil
	case <-b.ctx.Done():
		return 0, io.EOF
	}
}

// A body that comes slowly is not waited for, over a real session.
func TestABodyThatComesSlowlyIsNotWaitedFor(t *testing.T) {
	overSession(t, func(t *testing.T, c *Cell, rt http.RoundTripper) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		var asked sync.WaitGroup
		for range 20 {
			asked.Go(func() {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kip/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
					trickle{ctx})
				if err != nil {
					t.Error(err)
					return
				}
				r.ContentLength = 8 << 10
				r.Header.Set("Content-Type", "application/json")
				resp, err := rt.RoundTrip(r)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = resp.Body.Close() }()
				if took := time.Since(began); resp.StatusCode != http.StatusTooManyRequests || took > readWithin+2*time.Second {
					t.Errorf("answered %d after %v, want 429 after %v", resp.StatusCode, took, readWithin)
				}
			})
		}
		time.Sleep(readWithin / 2)
		if open, _, bodies := c.budget.holds(); open != 20 || bodies != 20*8<<10 {
			t.Errorf("%d requests are open with %d bytes", open, bodies)
		}
		asked.Wait()
		synctest.Wait()
		if open, _, bodies := c.budget.holds(); open != 0 || bodies != 0 {
			t.Errorf("%d requests are still open with %d bytes", open, bodies)
		}
	})
}

// Who does not read what was asked is not waited for: neither a list nor a watch is
// held, and the cell's other requests are answered, over a real session.
func TestAnAnswerThatIsNotReadIsNotHeld(t *testing.T) {
	overSession(t, func(t *testing.T, c *Cell, rt http.RoundTripper) {
		for i := range 64 {
			o, err := watches.NewObject(podKind, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: fmt.Sprint("web-", i), ResourceVersion: fmt.Sprint(1000 + i),
				Annotations: map[string]string{"a": strings.Repeat("x", 64<<10)},
			}})
			if err != nil {
				t.Fatal(err)
			}
			c.pods.Put(o)
		}
		ask := func(path string) *http.Response {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://kip"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := rt.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		for range 8 {
			for _, path := range []string{"/api/v1/pods", "/api/v1/pods?watch=true"} {
				resp := ask(path)
				defer func() { _ = resp.Body.Close() }()
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: %d", path, resp.StatusCode)
				}
			}
		}
		time.Sleep(writeWithin / 2)
		if open, watching, _ := c.budget.holds(); open != 8 || watching != 8 {
			t.Errorf("%d requests and %d watches are open, want all", open, watching)
		}
		other := ask("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/kip-0")
		_, _ = io.Copy(io.Discard, other.Body)
		_ = other.Body.Close()
		if other.StatusCode != http.StatusNotFound {
			t.Errorf("another request: %d, want 404", other.StatusCode)
		}
		time.Sleep(writeWithin)
		synctest.Wait()
		if open, watching, _ := c.budget.holds(); open != 0 || watching != 0 {
			t.Errorf("%d requests and %d watches are still held", open, watching)
		}
	})
}
