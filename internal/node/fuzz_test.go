package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/internal/agentapi"
)

// askedCell is a cell that notes what it is asked.
type askedCell struct{ asked []*http.Request }

func (c *askedCell) RoundTrip(r *http.Request) (*http.Response, error) {
	c.asked = append(c.asked, r)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("from the cell"))}, nil
}

// FuzzNobodyReachesACellWithoutTheRight sends requests of all forms, as users who have
// all rights but that to a node's proxy, who may only read or only run by that, and who
// may all.
func FuzzNobodyReachesACellWithoutTheRight(f *testing.F) {
	verbs := []string{"get", "create", "update", "patch", "delete", ""}
	var beside, all []string
	for _, verb := range verbs {
		for _, sub := range []string{"pods", "healthz", "configz", "stats", "metrics", "log", "statusz"} {
			beside = append(beside, verb+" "+sub)
		}
		all = append(all, verb+" proxy", verb+" checkpoint")
	}
	all = append(all, beside...)
	review := httptest.NewServer(&reviewer{may: map[string][]string{"beside": beside, "reader": {"get proxy"},
		"runner": {"get proxy", "create proxy"}, "nobody": {}, "admin": all}})
	f.Cleanup(review.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: review.URL, QPS: -1})
	if err != nil {
		f.Fatal(err)
	}
	cell := &askedCell{}
	cells := &fakeCells{conn: cell}
	served := false
	port, err := NewPort(PortConfig{
		NodeName:    testNode,
		Reviews:     client,
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("no TLS here") },
		Cells:       cells,
		Logs:        fakeLogs{},
		Stats:       http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }),
		Metrics:     http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }),
		MaxPods:     func() int64 { served = true; return 20 },
		Pods:        func() []*corev1.Pod { served = true; return nil },
		Healthy:     func(context.Context) error { served = true; return nil },
		Log:         slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.Fatal(err)
	}
	// send is how a request comes from the network; nil if it is none, or has a header
	// of its own in its line.
	send := func(ctx context.Context, user, method, target string) (*http.Request, *httptest.ResponseRecorder) {
		head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: kip\r\nAuthorization: Bearer %s\r\nCookie: a=b\r\n\r\n", method, target, user)
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head)))
		if err != nil || r.Header.Get("Authorization") != strings.TrimSpace("Bearer "+user) {
			return nil, nil
		}
		cell.asked, cells.got, served = nil, nil, false
		w := httptest.NewRecorder()
		port.ServeHTTP(w, r.WithContext(ctx))
		return r, w
	}
	for user, target := range map[string]string{"reader": "/containerLogs/ns/p/c", "admin": "/exec/ns/p/c"} {
		if _, w := send(f.Context(), user, "GET", target); w.Code != http.StatusOK || len(cell.asked) != 1 {
			f.Fatalf("%s cannot reach %s, so nothing is shown: %d %s", user, target, w.Code, w.Body)
		}
	}
	users := []string{"", "nobody", "beside", "reader", "runner", "admin"}
	for user := range users {
		f.Add(byte(user), "GET", "/containerLogs/ns/p/c?follow=true")
		f.Add(byte(user), "POST", "/exec/ns/p/c?command=id")
	}
	for _, target := range []string{
		"/containerLogs/ns/p/c?follow=true",
		"/exec/ns/p/c?command=id",
		"/attach/ns/p/uid/c",
		"/portForward/ns/p",
		"/portForward/ns/p/uid",
		"/run/ns/p/c",
		"/checkpoint/ns/p/c",
		"//exec/ns/p/c",
		"/%65xec/ns/p/c",
		"/exec%2Fns/p/c",
		"/pods/../exec/ns/p/c",
		"/metrics/%2e%2e/exec/ns/p/c",
		"/containerLogs/ns/..%2f..%2fexec/c",
		"/containerLogs/../exec/p",
		"/containerLogs/%2e%2e/p/c",
		"http://x/exec/ns/p/c",
		"/pods",
		"/runningpods/",
		"/healthz",
		"/stats/summary",
		"/metrics/cadvisor",
		"*",
	} {
		f.Add(byte(2), "GET", target)
		f.Add(byte(3), "GET", target)
		f.Add(byte(4), "POST", target)
	}
	f.Add(byte(3), "HEAD", "/containerLogs/ns/p/c")
	f.Add(byte(5), "CONNECT", "/exec/ns/p/c")
	f.Fuzz(func(t *testing.T, who byte, method, target string) {
		user := users[int(who)%len(users)]
		r, w := send(t.Context(), user, method, target)
		if r == nil {
			return
		}
		said := fmt.Sprintf("%s %q as %q: %d", method, target, user, w.Code)
		if denied := w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden; denied || user == "" || user == "nobody" {
			if !denied || served || len(cells.got) > 0 {
				t.Fatalf("%s, and it was answered", said)
			}
			return
		}
		if len(cells.got) > 0 && user == "beside" {
			t.Fatalf("%s: it came to a cell", said)
		}
		if len(cell.asked) == 0 {
			return
		}
		out := cell.asked[0]
		below, ok := strings.CutPrefix(out.URL.Path, agentapi.PathKubelet+"/")
		segments := strings.Split(below, "/")
		if !ok || len(cell.asked) != 1 || path.Clean(out.URL.Path) != out.URL.Path || len(segments) < 3 || len(segments) > 5 {
			t.Fatalf("%s: the cell was asked for %q", said, out.URL.Path)
		}
		what := segments[0]
		if !slices.Contains([]string{"containerLogs", "exec", "attach", "run", "checkpoint", "portForward"}, what) {
			t.Fatalf("%s: the cell was asked for %q", said, out.URL.Path)
		}
		if user == "reader" && what != "containerLogs" || user == "runner" && what == "checkpoint" {
			t.Fatalf("%s: without the right, %q was reached", said, out.URL.Path)
		}
		if !strings.HasPrefix(cells.got[0], segments[1]+"/"+segments[2]+"/") {
			t.Fatalf("%s: the cell of %q was asked for %q", said, cells.got[0], out.URL.Path)
		}
		if out.URL.RawQuery != r.URL.RawQuery || out.Host != "cell" || out.Header.Get("Authorization") != "" || out.Header.Get("Cookie") != "" {
			t.Fatalf("%s: the cell got %v %v", said, out.URL, out.Header)
		}
	})
}
