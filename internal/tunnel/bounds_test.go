package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// longest is a name as long as Kubernetes takes one (DNS1123SubdomainMaxLength in
// k8s.io/apimachinery/pkg/util/validation/validation.go); that of a namespace or a container has 63.
var longest = strings.Repeat("x", 253)

// longestExec is the path of what runs a command as long as Linux takes an argument (MAX_ARG_STRLEN in
// include/uapi/linux/binfmts.h), each byte of which takes three.
func longestExec() string {
	script := strings.Repeat("\n", 128<<10-1)
	return "/exec/" + longest[:63] + "/" + longest + "/" + longest[:63] + "?" +
		url.Values{"command": {"sh", "-c", script}, "output": {"1"}}.Encode()
}

// longestWatch is the path of a kubelet's longest request: the watch of one object.
func longestWatch() string {
	return "/api/v1/namespaces/" + longest[:63] + "/configmaps?" + url.Values{
		"allowWatchBookmarks": {"true"}, "fieldSelector": {"metadata.name=" + longest}, "resourceVersion": {"18446744073709551615"},
		"resourceVersionMatch": {"NotOlderThan"}, "sendInitialEvents": {"true"}, "timeout": {"9m59s"}, "timeoutSeconds": {"599"},
		"watch": {"true"},
	}.Encode()
}

// Each bound of the tunnel, where it comes from, and the largest that a node does. TestAConnectionHasSoManyAnswersHeld
// drives maxHeld: a kubelet within its budget has no answers held.
func TestEachBoundLeavesRoomForWhatANodeDoes(t *testing.T) {
	l := defaultLimits()
	for _, b := range []struct {
		name          string
		bound, honest int64
		source        string
	}{
		{"maxHeader", maxHeader, int64(len(longestExec())) + 2<<10, "MaxHeaderBytes, pkg/kubelet/server/server.go; an exec of 128 KiB"},
		{"maxAskedHeader", maxAskedHeader, int64(len(longestWatch())) + 1<<10, "a kubelet's watch by name; it shows a certificate, no token"},
		{"maxAnswerHeader", maxAnswerHeader, 2 << 10, "what a kubelet answers, which does not grow with what it was asked"},
		{"maxStreams", maxStreams, 1000, "HTTP2MaxStreamsPerConnection, k8s.io/apiserver/pkg/server/options/recommended.go; more wait"},
		{"limits.header", int64(l.header), int64(time.Second) * maxHeader / (300_000 / 8), "a MiB by a link of 300 kbit/s"},
		{"limits.pingAfter and pingTimeout", int64(l.silence()), int64(10 * time.Second), "a heartbeat of a kubelet: nodeStatusUpdateFrequency"},
		{"limits.patience", int64(l.patience), int64(40 * time.Second), "nodeLeaseDurationSeconds"},
		{"limits.arrivalBurst", int64(l.arrivalBurst), 50, "a Kip that does not know yet whether a cell has joined; proven ones are not metered"},
	} {
		if b.bound < b.honest {
			t.Errorf("%s is %d, and a node does %d: %s", b.name, b.bound, b.honest, b.source)
		}
	}
	if streamWindow*2 > connWindow || requestWindow*2 > requestConnWindow {
		t.Error("one reader that stalls holds up the others")
	}
}

// A header may come as slowly as limits.header allows. The cell closes the connection of one that comes more slowly.
func TestAHeaderHasItsTimeAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, d, _ := w.overPipes(says("agent"))
		s := w.keep(d, w.target(netip.MustParseAddrPort("10.0.0.1:6421")), nil)
		<-s.Ready()
		for pause, answered := range map[time.Duration]bool{w.limits.header - time.Second: true, w.limits.header + time.Second: false} {
			tc, nc, err := s.dial(t.Context(), protoHTTP1, s.placeOfRequest(), s.credentials(), s.verify)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(tc, "GET / HTTP/1.1\r\nHost: cell\r\n"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(pause)
			_, _ = io.WriteString(tc, "\r\n") // which fails when the cell has closed
			resp, err := http.ReadResponse(bufio.NewReader(tc), nil)
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != answered {
				t.Errorf("a header that takes %v: answered %t, %v", pause, err == nil, err)
			}
			nc.Close()
		}
	})
}

// What paces instead of refusing lets everything through: more and larger requests than are taken at once.
func TestWhatIsBeyondAWindowWaitsAndArrives(t *testing.T) {
	w := newWorld(t)
	log := bytes.Repeat([]byte("0123456789abcde\n"), 10<<20/16) // as long as a log on a node
	reaches := func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			conn, _, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n%d", len(r.URL.RawQuery))
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(rw, "%d %d", len(r.URL.RawQuery), n)
		if strings.HasPrefix(r.URL.Path, "/containerLogs/") {
			_, _ = rw.Write(log)
		}
	}
	m := w.start(t.TempDir(), "", http.HandlerFunc(reaches))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), http.HandlerFunc(reaches))
	wait(t, "the session", s.Ready())
	_, query, _ := strings.Cut(longestExec(), "?")
	_, watch, _ := strings.Cut(longestWatch(), "?")
	for name, c := range map[string]struct {
		by      http.RoundTripper
		path    string
		upgrade bool
		body    int // bytes of a request: an object has 3 MiB at most (MaxRequestBodyBytes in k8s.io/apiserver/pkg/server/config.go)
		want    string
		times   int
	}{
		"a command, upgraded":   {by: s.Conn(), path: longestExec(), upgrade: true, want: fmt.Sprint(len(query)), times: 3 * upgradesAtOnce},
		"a command, by its own": {by: s.Streams(), path: longestExec(), want: fmt.Sprintf("%d 0", len(query)), times: 3},
		"a log, by its own":     {by: s.Streams(), path: "/containerLogs/ns/p/c", want: "0 0" + string(log), times: 3},
		"a command":             {by: s.Conn(), path: longestExec(), want: fmt.Sprintf("%d 0", len(query)), times: 3},
		"a log":                 {by: s.Conn(), path: "/containerLogs/ns/p/c", want: "0 0" + string(log), times: 3},
		"a kubelet's watch":     {by: m.RoundTripper(), path: longestWatch(), want: fmt.Sprintf("%d 0", len(watch)), times: 3},
		"a kubelet's patch":     {by: m.RoundTripper(), path: "/", body: 3 << 20, want: fmt.Sprintf("0 %d", 3<<20), times: 3},
	} {
		var all sync.WaitGroup
		for range c.times {
			all.Go(func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://cell"+c.path, bytes.NewReader(make([]byte, c.body)))
				if err != nil {
					t.Error(err)
					return
				}
				if c.upgrade {
					req.Header.Set("Connection", "Upgrade")
					req.Header.Set("Upgrade", "x")
				}
				resp, err := c.by.RoundTrip(req)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				defer resp.Body.Close()
				if b, err := io.ReadAll(resp.Body); err != nil || string(b) != c.want {
					t.Errorf("%s: %d bytes, want %d: %.100q %v", name, len(b), len(c.want), b, err)
				}
			})
		}
		all.Wait()
	}
}

// As many as like may follow a log and not read it.
func TestWhoDoesNotReadHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	m := w.start(t.TempDir(), "", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write(make([]byte, 1<<10)) // before it stalls
		if err := http.NewResponseController(rw).Flush(); err != nil || r.URL.Path == "/v1/status" {
			return
		}
		for {
			if _, err := rw.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}))
	s := w.keep(w.dialer(w.authority), w.target(m.addr), nil)
	wait(t, "the session", s.Ready())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 * connWindow / streamWindow {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cell/containerLogs/ns/p/c?follow=true", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Streams().RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	for name, conn := range map[string]http.RoundTripper{"Kip": s.Conn(), "another reader": s.Streams()} {
		if code, body, err := tryGet(conn, "/v1/status"); err != nil || code != http.StatusOK || len(body) != 1<<10 {
			t.Errorf("%s: %d, %d bytes, %v", name, code, len(body), err)
		}
	}
}
