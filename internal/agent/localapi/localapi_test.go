package localapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/test/loopback"
)

var quiet = slog.New(slog.DiscardHandler)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func newPKI(t *testing.T) *PKI {
	t.Helper()
	p, err := NewPKI(filepath.Join(t.TempDir(), "pki"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// kubelet is an HTTP client with the kubelet's own certificate files.
func kubelet(t *testing.T, p *PKI) *http.Client {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(p.Files.ClientCert, p.Files.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	return client(t, p, &cert)
}

func client(t *testing.T, p *PKI, cert *tls.Certificate) *http.Client {
	c := &tls.Config{RootCAs: p.roots}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// serve runs an endpoint in front of kip until the test ends.
func serve(t *testing.T, p *PKI, kip http.RoundTripper) *Endpoint {
	t.Helper()
	e, err := p.Listen("127.0.0.1:0", kip, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestOnlyTheKubeletsCertificateOpensTheEndpoint(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	asked := 0
	e := serve(t, p, roundTrip(func(r *http.Request) (*http.Response, error) {
		asked++
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(r.URL.RequestURI()))}, nil
	}))
	foreign, err := tls.LoadX509KeyPair(other.Files.ClientCert, other.Files.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := tls.LoadX509KeyPair(p.Files.ServingCert, p.Files.ServingKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, cert := range map[string]*tls.Certificate{"none": nil, "of another machine": &foreign, "for serving only": &serving} {
		if resp, err := client(t, p, cert).Get(e.URL() + "/api/v1/nodes"); err == nil {
			resp.Body.Close()
			t.Errorf("a certificate %s opened the endpoint", name)
		}
	}
	if asked != 0 {
		t.Fatalf("%d requests without the kubelet's certificate reached Kip", asked)
	}
	resp, err := kubelet(t, p).Get(e.URL() + "/api/v1/nodes?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "/api/v1/nodes?watch=true" {
		t.Errorf("got %q, %v", body, err)
	}
	if resp.ProtoMajor != 2 {
		t.Errorf("%s: each of the kubelet's watches would take a connection", resp.Proto)
	}
}

func TestAWatchEventIsPassedOnAtOnceAndTheWatchEndsWithItsClient(t *testing.T) {
	p := newPKI(t)
	events, ended := make(chan string), make(chan struct{})
	e := serve(t, p, roundTrip(func(r *http.Request) (*http.Response, error) {
		pr, pw := io.Pipe()
		go func() {
			defer close(ended)
			for {
				select {
				case ev := <-events:
					fmt.Fprintln(pw, ev)
				case <-r.Context().Done():
					pw.CloseWithError(r.Context().Err())
					return
				}
			}
		}()
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: pr}, nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL()+"/api/v1/pods?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := kubelet(t, p).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for _, ev := range []string{"ADDED", "MODIFIED"} {
		events <- ev // the next is sent only once this one has come
		if !lines.Scan() || lines.Text() != ev {
			t.Fatalf("got %q, %v; want %q", lines.Text(), lines.Err(), ev)
		}
	}
	cancel()
	<-ended
}

func TestWhatTheKubeletSendsIsWaitedForButNoWatch(t *testing.T) {
	p := newPKI(t)
	came, answer := make(chan string, 2), make(chan struct{})
	e := serve(t, p, roundTrip(func(r *http.Request) (*http.Response, error) {
		came <- r.Method
		body, send := io.Pipe()
		go func() {
			select {
			case <-answer:
			case <-r.Context().Done():
			}
			send.Close()
		}()
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body}, nil
	}))
	c := kubelet(t, p)
	ask := func(method, path string) {
		req, err := http.NewRequestWithContext(t.Context(), method, e.URL()+path, nil)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer close(answer)
	all.Go(func() { ask(http.MethodGet, "/api/v1/pods?watch=true") })
	<-came
	if err := p.Answered(ctx); err != nil {
		t.Errorf("a watch is waited for: %v", err)
	}
	all.Go(func() { ask(http.MethodPatch, "/api/v1/namespaces/a/pods/b/status") })
	<-came
	if err := p.Answered(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("what has no answer is not waited for: %v", err)
	}
	answer <- struct{}{}
	answer <- struct{}{} // of both
	if err := p.Answered(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestThePodsEndIsWaitedForUntilKipHasTakenIt(t *testing.T) {
	p := newPKI(t)
	answer := http.StatusOK
	e := serve(t, p, roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: answer, Header: http.Header{}, Body: http.NoBody}, nil
	}))
	c := kubelet(t, p)
	ask := func(method, path, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, e.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	const pod, status = "/api/v1/namespaces/a/pods/b", "/api/v1/namespaces/a/pods/b/status"
	const patch, get, remove = http.MethodPatch, http.MethodGet, http.MethodDelete
	list := func(name, states string) string {
		return `{"status":{"` + name + `":[{"state":{"terminated":{}}},{"state":{` + states + `}}]}}`
	}
	const main, begins, debug = "containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"
	const runs, ended, failed = `"running":{}`, `"terminated":{}`, `{"status":{"phase":"Failed"}}`
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, s := range []struct {
		name, method, path, body string
		answer                   int
		told                     bool
	}{
		{"another object", patch, "/api/v1/nodes/a", list(main, runs), 200, true},
		{"the pod itself", patch, pod, list(main, runs), 200, true},
		{"no patch", patch, status, "!", 200, true},
		{"one that Kip refuses", patch, status, list(main, runs), 403, true},
		{"it runs", patch, status, list(main, runs), 200, false},
		{"a condition", patch, status, `{"status":{"conditions":[]}}`, 200, false},
		{"it has failed, and a container runs", patch, status, failed, 200, false},
		{"Kip has no time for the container's end", patch, status, list(main, ended), 429, false},
		{"the container has ended", patch, status, list(main, ended), 200, true},
		{"a sidecar runs", patch, status, list(begins, runs), 200, false},
		{"and ends", patch, status, list(begins, ended), 200, true},
		{"one for people runs", patch, status, list(debug, runs), 200, false},
		{"there is none", patch, status, `{"status":{"` + debug + `":null}}`, 200, true},
		{"it runs after all", patch, status, `{"status":{"phase":"Running"}}`, 200, false},
		{"another pod is not there", get, "/api/v1/namespaces/a/pods/c", "", 404, false},
		{"Kip does not answer", get, pod, "", 503, false},
		{"it is not there", get, pod, "", 404, true},
		{"it comes again", patch, status, list(main, runs), 200, false},
		{"its end is refused", remove, pod, "{}", 409, false},
		{"it is deleted", remove, pod, "{}", 200, true},
		{"another of its name", patch, status, `{"status":{"phase":"Running"}}`, 200, false},
		{"of which nothing was kept", patch, status, failed, 200, true},
	} {
		answer = s.answer
		ask(s.method, s.path, s.body)
		if err := p.Told(over); (err == nil) != s.told {
			t.Errorf("%s: told of the end: %v, want %t", s.name, err, s.told)
		}
	}

	ask(patch, status, `{"status":{"phase":"Running"}}`)
	heard := make(chan error)
	go func() { heard <- p.Told(t.Context()) }()
	for range 2 {
		ask(patch, status, `{"status":{"conditions":[]}}`)
		select {
		case err := <-heard:
			t.Fatalf("heard before the pod has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	ask(patch, status, failed)
	if err := <-heard; err != nil {
		t.Error(err)
	}
}

func TestWithoutKipTheKubeletGetsAStatus(t *testing.T) {
	p := newPKI(t)
	e := serve(t, p, roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("no connection") }))
	resp, err := kubelet(t, p).Get(e.URL() + "/api/v1/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var status struct{ Kind, Reason, Message string }
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusTooManyRequests || status.Kind != "Status" || status.Reason != "TooManyRequests" ||
		!strings.Contains(status.Message, "no connection") {
		t.Errorf("%d %+v", resp.StatusCode, status)
	}
}

// kubeletServer is a server with the kubelet's certificate that asks for itzo's.
func kubeletServer(t *testing.T, p *PKI, h http.Handler) string {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(p.Files.ServingCert, p.Files.ServingKey)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: p.roots,
		NextProtos: []string{"h2", "http/1.1"}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestUpgradedConnectionsPassIntoTheKubelet(t *testing.T) {
	p := newPKI(t)
	addr := kubeletServer(t, p, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/exec/ns/pod/main?command=sh" {
			t.Errorf("the kubelet was asked for %s", r.URL.RequestURI())
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		rw.Flush()
		_, _ = io.Copy(conn, rw) // echo
	}))
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		t.Run(protocol, func(t *testing.T) {
			itzo := httptest.NewServer(p.KubeletProxy(agentapi.PathKubelet, addr, quiet))
			defer itzo.Close()
			conn, err := net.Dial("tcp", itzo.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST %s/exec/ns/pod/main?command=sh HTTP/1.1\r\nHost: cell\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
				agentapi.PathKubelet, protocol)
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != protocol {
				t.Fatalf("%s, Upgrade: %q", resp.Status, resp.Header.Get("Upgrade"))
			}
			for _, text := range []string{"one\n", "two\n"} {
				fmt.Fprint(conn, text)
				if got, err := in.ReadString('\n'); err != nil || got != text {
					t.Fatalf("got %q, %v; want %q", got, err, text)
				}
			}
		})
	}
}

func TestLogsFlowWhileTheyAreWritten(t *testing.T) {
	p := newPKI(t)
	lines := make(chan string)
	addr := kubeletServer(t, p, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		for line := range lines {
			fmt.Fprintln(w, line)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	itzo := httptest.NewServer(p.KubeletProxy(agentapi.PathKubelet, addr, quiet))
	defer itzo.Close()
	got := make(chan string)
	go func() {
		defer close(got)
		resp, err := http.Get(itzo.URL + agentapi.PathKubelet + "/containerLogs/ns/pod/main?follow=true")
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			got <- s.Text()
		}
	}()
	for _, line := range []string{"first", "second"} {
		lines <- line
		if g := <-got; g != line {
			t.Fatalf("got %q, want %q", g, line)
		}
	}
	close(lines)
	if g, more := <-got; more {
		t.Errorf("after the end came %q", g)
	}
}

func TestAKubeletThatDoesNotRunIsSaidSo(t *testing.T) {
	p := newPKI(t)
	addr := loopback.Refused(t).String()
	w := httptest.NewRecorder()
	p.KubeletProxy(agentapi.PathKubelet, addr, quiet).ServeHTTP(w, httptest.NewRequest(http.MethodGet, agentapi.PathKubelet+"/healthz", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "kubelet does not answer") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestKeysAreForRootOnlyAndNewAtEachStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first, err := NewPKI(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(first.Files.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(first.Files.ClientKey, 0o644); err != nil { // by somebody careless
		t.Fatal(err)
	}
	second, err := NewPKI(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(second.Files.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) == string(after) {
		t.Error("the key is the earlier start's")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 5 {
		t.Errorf("%d files, want the CA's certificate and two pairs, and never the CA's key", len(entries))
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
		}
	}
}
