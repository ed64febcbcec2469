package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	clientcommand "k8s.io/client-go/tools/remotecommand"
	servercommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/elotl/kip/internal/agent/localapi"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/tunnel"
)

// throughACell returns the way to a kubelet with this handler, and the bounds of a real one, through
// a tunnel and what an agent serves. The cell ends with end.
func throughACell(t *testing.T, kubelet http.Handler) (conn agentapi.Conn, end func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	local, err := localapi.NewPKI(filepath.Join(t.TempDir(), "pki"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(local.Files.ServingCert, local.Files.ServingKey)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(local.Files.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	server := httptest.NewUnstartedServer(kubelet)
	server.Config.MaxHeaderBytes = 1 << 20 // MaxHeaderBytes in pkg/kubelet/server/server.go
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
	server.StartTLS()
	t.Cleanup(server.Close)

	authority, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	token := pki.NewToken()
	cell, err := tunnel.NewCell(tunnel.CellConfig{
		UserData: agentapi.UserData{CellID: "c-1", CAHash: authority.Hash(), Token: token.Reveal()},
		StateDir: t.TempDir(),
		Handler:  local.KubeletProxy(agentapi.PathKubelet, server.Listener.Addr().String(), log),
		Log:      log,
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- cell.Serve(ctx, l) }()
	dialer, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	session, err := dialer.Keep(ctx, tunnel.Target{CellID: "c-1", Addr: l.Addr().(*net.TCPAddr).AddrPort(), Token: token},
		http.NotFoundHandler(), func(context.Context, string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(session.Close)
	t.Cleanup(func() {
		end()
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return session.Streams(), end
}

// told is a container's process that says how long its last argument is.
type told struct{}

func (told) ExecInContainer(_ context.Context, _, _, _ string, cmd []string, _ io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan servercommand.TerminalSize, _ time.Duration) error {
	fmt.Fprint(out, len(cmd[len(cmd)-1]))
	return nil
}

// Linux takes an argument of 128 KiB (MAX_ARG_STRLEN in include/uapi/linux/binfmts.h), and a node's kubelet what of it
// there is in a header of 1 MiB: each byte of what is no letter takes three in the path.
func TestACommandAsLongAsANodeTakesReachesTheKubelet(t *testing.T) {
	f := serve(t, nil)
	f.cells.conn, _ = throughACell(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		options, err := servercommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		servercommand.ServeExec(w, r, told{}, "p", "", "c", r.URL.Query()["command"], options,
			time.Minute, time.Minute, servercommand.SupportedStreamingProtocols)
	}))
	config := &rest.Config{Host: "https://" + f.addr, BearerToken: "admin", TLSClientConfig: rest.TLSClientConfig{CAData: f.ca.pem}}
	for _, script := range []string{"exit", strings.Repeat("x", 128<<10-1), strings.Repeat("\n", 120_000), strings.Repeat("\n", 128<<10-1)} {
		u := &url.URL{Scheme: "https", Host: f.addr, Path: "/exec/ns/p/c",
			RawQuery: url.Values{"command": {"sh", "-c", script}, "output": {"1"}}.Encode()}
		executor, err := clientcommand.NewSPDYExecutor(config, "POST", u)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = executor.StreamWithContext(t.Context(), clientcommand.StreamOptions{Stdout: &out})
		if err != nil || out.String() != fmt.Sprint(len(script)) {
			t.Errorf("of %d bytes, %d in the path, came %q: %.200v", len(script), len(u.RawQuery), out.String(), err)
		}
	}
}

// A node keeps the log as long as the pod exists, and who is late reads on. A cell ends, and what it had to say is kept.
func TestWhoLagsGetsTheWholeLogOfACellThatEnds(t *testing.T) {
	const lines = 89_000 // 9.7 MB, which no buffers on the way hold
	f := serve(t, nil)
	conn, end := throughACell(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i := range lines {
			if _, err := fmt.Fprintf(w, "%08d %0100d\n", i, 0); err != nil {
				return
			}
		}
	}))
	saver, err := podlogs.Open(podlogs.Config{
		Dir:    t.TempDir(),
		Log:    slog.New(slog.DiscardHandler),
		Statfs: func(string, *unix.Statfs_t) error { return nil }, // whether this machine's disk is nearly full is of no interest
	})
	if err != nil {
		t.Fatal(err)
	}
	f.cells.conn = saver.Track("ns", "u", conn)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+f.addr+"/containerLogs/ns/p/c?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer admin")
	resp, err := f.client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 1000)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	saver.Finish(t.Context(), "u") // nobody reads meanwhile
	end()
	rest, err := io.ReadAll(resp.Body)
	all := append(first, rest...)
	last := fmt.Appendf(nil, "%08d", lines-1)
	if n := bytes.Count(all, []byte("\n")); err != nil || n != lines || !bytes.HasPrefix(all[len(all)-110:], last) {
		t.Errorf("%d lines of %d: %v; the last is %q", n, lines, err, all[max(0, len(all)-110):])
	}
}

// from is a client of the port with an address of its own.
func (f *fixture) from(t *testing.T, address string) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 0))}
	transport := &http.Transport{TLSClientConfig: f.tls(), DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// meter is a listener that counts what was read of each connection.
type meter struct {
	net.Listener
	mu  sync.Mutex
	all []*metered
}

type metered struct {
	net.Conn
	read atomic.Int64
}

func (m *meter) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	is := &metered{Conn: c}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, is)
	return is, nil
}

func (c *metered) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// count returns of how many connections of an address so many bytes were read.
func (m *meter) count(from string, bytes int64) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.all {
		if host, _, err := net.SplitHostPort(c.RemoteAddr().String()); err == nil && host == from && c.read.Load() >= bytes {
			n++
		}
	}
	return n
}

// asksWith asks for a log as an admin, with a header of such a size, from an address.
func (f *fixture) asksWith(t *testing.T, from string, size int) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+f.addr+"/containerLogs/ns/p/c", nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("X-Long", strings.Repeat("x", size))
	resp, err := f.from(t, from).Do(r)
	if err == nil {
		resp.Body.Close()
	}
	return resp, err
}

// Whom nobody knows holds so much of Kip's memory, and keeps no place that others wait for.
func TestLargeHeadersOfStrangersKeepOutNobodyElse(t *testing.T) {
	const strangers, whole = placesOfLarge + 1, 4 * smallHeader // one read of TLS may be larger than smallHeader
	f := serve(t, says("from the cell"))
	for range strangers {
		conn, err := tls.Dial("tcp", f.addr, f.tls())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() { // what Kip does not read may not fit into the network
			_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: kip\r\nX-Long: %s", strings.Repeat("x", whole))
		}()
	}
	eventually(t, "as many as may have a place, and all others wait for one", func() bool {
		return f.meter.count("127.0.0.1", smallHeader) == strangers && f.meter.count("127.0.0.1", whole) >= placesOfOne
	})
	for _, c := range []struct {
		from string
		size int
	}{{"127.0.0.1", 0}, {"127.0.0.2", mostHeader / 2}} {
		if resp, err := f.asksWith(t, c.from, c.size); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%d bytes from %s: %v, %v", c.size, c.from, resp, err)
		}
	}
	if n := f.meter.count("127.0.0.1", whole); n > placesOfLarge {
		t.Errorf("large headers of %d strangers were read, want %d at most", n, placesOfLarge)
	}
}

// Who is known leaves its place to the next, however long its request takes.
func TestWhoIsKnownLeavesItsPlace(t *testing.T) {
	const callers = placesOfOne + 1
	reached, goOn := make(chan struct{}, callers), make(chan struct{})
	f := serve(t, func(http.ResponseWriter, *http.Request) {
		reached <- struct{}{}
		<-goOn
	})
	end := sync.OnceFunc(func() { close(goOn) })
	defer end()
	answers := make(chan string, callers)
	for range callers {
		go func() {
			resp, err := f.asksWith(t, "127.0.0.1", 2*smallHeader)
			if err != nil {
				answers <- err.Error()
				return
			}
			answers <- resp.Status
		}()
	}
	for n := range callers {
		select {
		case <-reached:
		case answer := <-answers:
			t.Fatalf("beside %d callers whose requests go on, one has the answer %s", n, answer)
		case <-time.After(patience):
			t.Fatalf("%d of %d callers reach the cell", n, callers)
		}
	}
	end()
	for range callers {
		if answer := <-answers; answer != "200 OK" {
			t.Error(answer)
		}
	}
}

// arriving is a listener of connections in memory, that come from any address.
type arriving struct {
	net.Listener
	next net.Conn
}

func (l *arriving) Accept() (net.Conn, error) { return l.next, nil }

type connFrom struct {
	net.Conn
	from net.Addr
}

func (c connFrom) RemoteAddr() net.Addr { return c.from }

// Of more strangers than there may be, the oldest goes of the source that has the most. Those that are known stay.
func TestTheOldestOfTooManyStrangersGoes(t *testing.T) {
	inner := &arriving{}
	l := strangers(inner)
	type caller struct{ here, there net.Conn }
	comes := func(from string) caller {
		t.Helper()
		here, there := net.Pipe()
		inner.next = connFrom{here, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from + ":1234"))}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return caller{c, there}
	}
	is := func(when string, c caller, open bool) {
		t.Helper()
		err := c.there.SetReadDeadline(time.Unix(1, 0))
		if err == nil {
			_, err = c.there.Read(make([]byte, 1))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) != open {
			t.Errorf("%s: %v, want it open: %t", when, err, open)
		}
	}
	other := comes("10.0.0.2")
	var flood []caller
	for range mostStrangers - 1 {
		flood = append(flood, comes("10.0.0.1"))
	}
	is("the oldest of as many as there may be", flood[0], true)
	comes("10.0.0.3")
	is("the oldest, and one has come", flood[0], false)
	is("the next, and one has come", flood[1], true)
	proven(withStranger(t.Context(), flood[1].here))
	comes("10.0.0.4")
	is("the next, in the room of one that is known", flood[2], true)
	comes("10.0.0.5")
	is("the next, and another has come", flood[2], false)
	is("one that is known", flood[1], true)
	is("of another source", other, true)
}

func TestAStrangerIsReadSoFar(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	l := strangers(inner)
	for _, known := range []bool{false, true} {
		there, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer there.Close()
		here, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer here.Close()
		if known {
			proven(withStranger(t.Context(), here))
		}
		go func() {
			defer there.Close()
			_, _ = there.Write(make([]byte, mostSent+1<<20)) // it breaks where it is not read
		}()
		n, err := io.Copy(io.Discard, here)
		if known && (n != mostSent+1<<20 || err != nil) || !known && (n < mostHeader || n > mostSent+64<<10 || !errors.Is(err, errTooLarge)) {
			t.Errorf("of who is known: %t, %d bytes were read: %v", known, n, err)
		}
		here.Close()
	}
}
