package node

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	clientcommand "k8s.io/client-go/tools/remotecommand"
	servercommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/elotl/kip/internal/agentapi"
)

// authority is a CA of the tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// issue makes a certificate and its key, PEM.
func (a *authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func (a *authority) pair(t *testing.T, name string, usage x509.ExtKeyUsage) *tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(a.issue(t, name, usage))
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

// reviewer is the part of an API server that reviews tokens and access. A token
// is the name of its user; may lists what a user may do, as "verb subresource" or
// "verb /path".
type reviewer struct {
	may map[string][]string

	mu    sync.Mutex
	asked []authorizationv1.SubjectAccessReviewSpec
}

func (a *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if _, known := a.may[review.Spec.Token]; known {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: review.Spec.Token}}
		}
		answer = review
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.mu.Lock()
		a.asked = append(a.asked, review.Spec)
		a.mu.Unlock()
		if attr := review.Spec.ResourceAttributes; attr != nil {
			review.Status.Allowed = attr.Resource == "nodes" && attr.Name == testNode &&
				slices.Contains(a.may[review.Spec.User], attr.Verb+" "+attr.Subresource) ||
				attr.Group == "kip.elotl.co" && attr.Version == "v1" && attr.Resource == "cells" &&
					slices.Contains(a.may[review.Spec.User], attr.Verb+" "+attr.Subresource+" of "+attr.Name)
		}
		if attr := review.Spec.NonResourceAttributes; attr != nil {
			review.Status.Allowed = slices.Contains(a.may[review.Spec.User], attr.Verb+" "+attr.Path)
		}
		answer = review
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer)
}

// fakeCells leads to one server, or to an error.
type fakeCells struct {
	mu   sync.Mutex
	conn agentapi.Conn
	errs []error // one for each call; the last stays
	got  []string
}

func (c *fakeCells) Conn(namespace, name string, uid types.UID) (agentapi.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, fmt.Sprintf("%s/%s/%s", namespace, name, uid))
	if len(c.errs) > 0 {
		err := c.errs[0]
		if len(c.errs) > 1 {
			c.errs = c.errs[1:]
		}
		if err != nil {
			return nil, err
		}
	}
	return c.conn, nil
}

func (c *fakeCells) Machine(cell string) (agentapi.Conn, error) {
	switch cell {
	case "c-1":
		return c.conn, nil
	case "c-away":
		return nil, errors.New("no tunnel")
	}
	return nil, ErrCellNotFound
}

// toServer sends every request to one address.
type toServer struct{ addr string }

func (s toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host = s.addr
	return http.DefaultTransport.RoundTrip(r)
}

type fakeLogs struct{}

func (fakeLogs) Serve(w http.ResponseWriter, r *http.Request, uid types.UID, container string) {
	fmt.Fprintf(w, "saved %s %s %s", uid, container, r.URL.RawQuery)
}

// fixture is a port that serves, and what is around it.
type fixture struct {
	addr   string
	meter  *meter
	ca     *authority
	api    *reviewer
	cells  *fakeCells
	health *state
	stop   func()
}

func serve(t *testing.T, itzo http.HandlerFunc) *fixture {
	t.Helper()
	return serveWith(t, itzo, func(ca *authority) (dynamiccertificates.CAContentProvider, error) {
		return dynamiccertificates.NewStaticCAContent("test", ca.pem)
	})
}

func serveWith(t *testing.T, itzo http.HandlerFunc, ca func(*authority) (dynamiccertificates.CAContentProvider, error)) *fixture {
	t.Helper()
	f := &fixture{
		ca: newAuthority(t, "cluster"),
		api: &reviewer{may: map[string][]string{
			"admin":    {"get proxy", "create proxy", "create checkpoint", "get stats", "get metrics", "get log"},
			"reader":   {"get proxy"},
			"lister":   {"get pods", "get healthz"},
			"nobody":   {},
			"metrics":  {"get metrics"},
			"stats":    {"get stats"},
			"config":   {"get configz", "get statusz"},
			"operator": {"create exec of c-1", "get log of c-1", "get log of c-away", "get log of none"},
			"looker":   {"get log of c-1"},
		}},
		cells: &fakeCells{}, health: &state{},
	}
	api := httptest.NewServer(f.api)
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host:          api.URL,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	})
	if err != nil {
		t.Fatal(err)
	}
	cell := httptest.NewServer(itzo)
	t.Cleanup(cell.Close)
	f.cells.conn = toServer{cell.Listener.Addr().String()}

	clientCA, err := ca(f.ca)
	if err != nil {
		t.Fatal(err)
	}
	serving := f.ca.pair(t, "kip", x509.ExtKeyUsageServerAuth)
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: corev1.PodStatus{Phase: phase}}
	}
	port, err := NewPort(PortConfig{
		NodeName: testNode, Reviews: client, ClientCA: clientCA,
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving, nil },
		Cells:       f.cells, Logs: fakeLogs{}, Healthy: f.health.healthy,
		Stats:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "stats of %s", r.URL.Path) }),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "stats of %s", r.URL.Path) }),
		MaxPods: func() int64 { return 20 }, Version: "v2.0.0",
		Pods: func() []*corev1.Pod {
			inits, ran := pod("inits", corev1.PodPending), pod("ran", corev1.PodPending)
			inits.Spec.InitContainers = []corev1.Container{{Name: "i"}}
			ran.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1}}
			return []*corev1.Pod{pod("a", corev1.PodRunning), pod("b", corev1.PodPending), inits, ran}
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr, f.meter = l.Addr().String(), &meter{Listener: l}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var following sync.WaitGroup
	following.Go(func() {
		if err := FollowClientCA(ctx, clientCA); err != nil {
			t.Error(err)
		}
	})
	go func() { done <- port.Serve(ctx, f.meter); following.Wait() }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) tls(certs ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.ca.pem)
	return &tls.Config{RootCAs: roots, Certificates: certs}
}

func (f *fixture) client(t *testing.T, certs ...tls.Certificate) *http.Client {
	transport := &http.Transport{TLSClientConfig: f.tls(certs...), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// do asks with a token and returns the code and the body.
func (f *fixture) do(t *testing.T, token, method, path string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+f.addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := f.client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// What is held of who is not known yet is bounded.
func TestAHeaderThatIsLargerThanAnyIsRefused(t *testing.T) {
	f := serve(t, says("from the cell"))
	transport := &http.Transport{TLSClientConfig: f.tls()} // by HTTP/1, where the client does not refuse to send it
	defer transport.CloseIdleConnections()
	for size, want := range map[int]int{mostHeader / 2: http.StatusUnauthorized, mostHeader + 16<<10: http.StatusRequestHeaderFieldsTooLarge} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+f.addr+"/stats/summary", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Long", strings.Repeat("a", size))
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("with a header of %d bytes: %s, want %d", size, resp.Status, want)
		}
	}
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, text) }
}

// Each path that a kubelet serves (k8s.io/kubernetes/pkg/kubelet/server/server.go) answers, for
// who may ask it: as a kubelet does, or as one whose handler is off, and says why.
func TestEachPathOfAKubeletAnswers(t *testing.T) {
	f := serve(t, says("from the cell"))
	for _, c := range []struct {
		user, method, path string
		code               int
		body               string // what is in it
	}{
		{"lister", "GET", "/healthz", 200, "ok"},
		{"lister", "GET", "/healthz/ping", 200, "ok"},
		{"lister", "GET", "/healthz/log", 200, "ok"},
		{"lister", "GET", "/healthz/syncloop", 200, "ok"},
		{"admin", "GET", "/healthz/nothing", 404, ""},
		{"lister", "GET", "/pods", 200, `"PodList"`},
		{"lister", "GET", "/runningpods/", 200, `"PodList"`},
		{"stats", "GET", "/stats/summary", 200, "stats of"},
		{"metrics", "GET", "/metrics", 200, "stats of /metrics"},
		{"metrics", "GET", "/metrics/slis", 200, "stats of /metrics/slis"},
		{"metrics", "GET", "/metrics/nothing", 404, ""},
		{"config", "GET", "/configz", 200, `"maxPods":20`},
		{"reader", "GET", "/configz", 200, `"kind":"KubeletConfiguration"`},
		{"metrics", "GET", "/configz", 403, ""},
		{"config", "GET", "/statusz", 200, "v2.0.0"},
		{"reader", "GET", "/statusz", 403, ""},
		{"config", "GET", "/flagz", 404, "has no flags"},
		{"reader", "GET", "/flagz", 403, ""},
		{"admin", "GET", "/logs/", 405, "logs endpoint is disabled."},
		{"admin", "GET", "/logs/messages", 405, "logs endpoint is disabled."},
		{"reader", "GET", "/debug/pprof/heap", 405, "profiling endpoint is disabled."},
		{"reader", "GET", "/debug/flags/v", 405, "flags endpoint is disabled."},
		{"nobody", "GET", "/debug/pprof/heap", 403, ""},
		{"admin", "POST", "/checkpoint/ns/p/c", 200, "from the cell"},
		{"reader", "GET", "/checkpoint/ns/p/c", 403, ""},
		{"reader", "GET", "/flags", 404, ""},
	} {
		code, body := f.do(t, c.user, c.method, c.path)
		if code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s %s as %s: %d %s, want %d with %q", c.method, c.path, c.user, code, body, c.code, c.body)
		}
	}
	f.health.set(errors.New("no store"))
	for path, want := range map[string]int{"/healthz": 500, "/healthz/syncloop": 500, "/healthz/ping": 200} {
		if code, body := f.do(t, "lister", "GET", path); code != want {
			t.Errorf("GET %s of a Kip that cannot work: %d %s, want %d", path, code, body, want)
		}
	}
}

// What a pod uses is not for all who may reach the port, nor for who may reach
// its pods: the kubelet has a right of its own for each of the two kinds.
func TestStatsNeedTheirOwnRights(t *testing.T) {
	f := serve(t, says("from the cell"))
	for path, may := range map[string]string{
		"/stats/summary": "stats", "/stats/summary?only_cpu_and_memory=true": "stats",
		"/metrics/resource": "metrics", "/metrics/cadvisor": "metrics", "/metrics/probes": "metrics",
		"/metrics": "metrics", "/metrics/slis": "metrics",
	} {
		for _, user := range []string{"stats", "metrics", "reader", "nobody", ""} {
			want := http.StatusForbidden
			switch user {
			case may:
				want = http.StatusOK
			case "":
				want = http.StatusUnauthorized
			}
			code, body := f.do(t, user, "GET", path)
			if name, _, _ := strings.Cut(path, "?"); code != want || (code == http.StatusOK) != (body == "stats of "+name) {
				t.Errorf("GET %s as %q: %d %s, want %d", path, user, code, body, want)
			}
		}
		if code, _ := f.do(t, may, "POST", path); code != http.StatusForbidden {
			t.Errorf("POST %s with the right to read: %d", path, code)
		}
	}
	f.api.mu.Lock()
	defer f.api.mu.Unlock()
	for _, spec := range f.api.asked {
		a := spec.ResourceAttributes
		if a == nil || a.Resource != "nodes" || a.Name != testNode || a.Namespace != "" || a.Group != "" ||
			a.Subresource != "stats" && a.Subresource != "metrics" {
			t.Errorf("asked for %+v", a)
		}
	}
}

func TestThePortIsNeverOpen(t *testing.T) {
	f := serve(t, says("from the cell"))
	for _, c := range []struct {
		token, method, path string
		code                int
	}{
		{"", "GET", "/containerLogs/ns/p/c", 401},
		{"", "GET", "/healthz", 401},
		{"", "GET", "/pods", 401},
		{"", "GET", "/no/such/path", 401},
		{"forged", "GET", "/containerLogs/ns/p/c", 401},
		{"nobody", "GET", "/containerLogs/ns/p/c", 403},
		{"nobody", "GET", "/healthz", 403},
		{"metrics", "GET", "/containerLogs/ns/p/c", 403},
		{"admin", "GET", "/containerLogs/ns/p/c", 200},
		{"admin", "POST", "/exec/ns/p/c", 200},
		{"admin", "POST", "/run/ns/p/c", 200},
		{"admin", "POST", "/checkpoint/ns/p/c", 200},
		{"admin", "GET", "/no/such/path", 404},
		{"admin", "DELETE", "/pods", 403}, // "delete pods" is not among its rights
		{"reader", "GET", "/containerLogs/ns/p/c", 200},
		{"reader", "POST", "/exec/ns/p/c", 403},
		// A WebSocket is a GET. Who may read must not run commands by it.
		{"reader", "GET", "/exec/ns/p/c", 403},
		{"reader", "GET", "/attach/ns/p/c", 403},
		{"reader", "GET", "/portForward/ns/p", 403},
		{"admin", "GET", "/exec/ns/p/c", 200},
		// Fine-grained rights.
		{"lister", "GET", "/pods", 200},
		{"lister", "GET", "/runningpods/", 200},
		{"lister", "GET", "/healthz", 200},
		{"lister", "GET", "/containerLogs/ns/p/c", 403},
		{"reader", "GET", "/pods", 200},
		// The path that is judged is the one that is served.
		{"lister", "GET", "/pods/../containerLogs/ns/p/c", 403},
		{"lister", "GET", "/pods/%2e%2e/containerLogs/ns/p/c", 404},
		{"lister", "GET", "/pods%2F..%2FcontainerLogs/ns/p/c", 404},
		{"lister", "GET", "//containerLogs/ns/p/c", 403},
	} {
		if code, body := f.do(t, c.token, c.method, c.path); code != c.code {
			t.Errorf("%s %s as %q: got %d %q, want %d", c.method, c.path, c.token, code, body, c.code)
		}
	}
	for _, spec := range f.api.asked {
		if a := spec.ResourceAttributes; a == nil || a.Resource != "nodes" || a.Name != testNode || a.Group != "" {
			t.Errorf("asked the API server about %+v", spec)
		}
	}
}

func TestClientCertificatesOfTheClustersCAAreKnown(t *testing.T) {
	f := serve(t, says("from the cell"))
	get := func(pair *tls.Certificate) int {
		resp, err := f.client(t, *pair).Get("https://" + f.addr + "/containerLogs/ns/p/c")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if code := get(f.ca.pair(t, "admin", x509.ExtKeyUsageClientAuth)); code != 200 {
		t.Errorf("admin: %d", code)
	}
	if code := get(f.ca.pair(t, "nobody", x509.ExtKeyUsageClientAuth)); code != 403 {
		t.Errorf("nobody: %d", code)
	}
	if code := get(newAuthority(t, "other").pair(t, "admin", x509.ExtKeyUsageClientAuth)); code != 401 {
		t.Errorf("admin by another CA: %d", code)
	}
	if code := get(f.ca.pair(t, "admin", x509.ExtKeyUsageServerAuth)); code != 401 {
		t.Errorf("admin with a server's certificate: %d", code)
	}
}

func TestThePublishedClientCAIsReadBeforeTheFirstRequest(t *testing.T) {
	f := serveWith(t, says("from the cell"), func(ca *authority) (dynamiccertificates.CAContentProvider, error) {
		return ClientCA(t.Context(), "", fake.NewClientset(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
			Data:       map[string]string{"client-ca-file": string(ca.pem)},
		}), slog.New(slog.DiscardHandler))
	})
	resp, err := f.client(t, *f.ca.pair(t, "admin", x509.ExtKeyUsageClientAuth)).Get("https://" + f.addr + "/containerLogs/ns/p/c")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("the first request was answered with %s", resp.Status)
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	f := serve(t, says(""))
	conn, err := tls.Dial("tcp", f.addr, f.tls())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	old := f.tls()
	old.MinVersion, old.MaxVersion = tls.VersionTLS11, tls.VersionTLS11
	const protocolVersion tls.AlertError = 70 // of RFC 8446; the package's own type for it is not exported
	var alert *net.OpError
	if conn, err := tls.Dial("tcp", f.addr, old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 was accepted")
	} else if !errors.As(err, &alert) || alert.Op != "remote error" || alert.Err.Error() != protocolVersion.Error() {
		t.Errorf("TLS 1.1 was answered with %v: want %v", err, protocolVersion)
	}
}

func TestRequestsReachTheKubeletOfThePodsCellUnchanged(t *testing.T) {
	var mu sync.Mutex
	var seen *http.Request
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = r.Clone(context.Background())
		mu.Unlock()
		w.Header().Set("X-Kubelet", "yes")
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, "as it is")
	})
	for _, c := range []struct{ method, path, kubelet, cell string }{
		{"GET", "/containerLogs/ns/p/c?follow=true&tailLines=3&sinceTime=2026-01-01T00%3A00%3A00Z", "", "ns/p/"},
		{"POST", "/exec/ns/p/c?command=sh&command=-c&command=a%3Bb%20c&output=1", "", "ns/p/"},
		{"GET", "/exec/ns/p/c?command=x", "", "ns/p/"},
		{"POST", "/exec/ns/p/uid-1/c?command=x", "", "ns/p/uid-1"},
		{"POST", "/attach/ns/p/c", "", "ns/p/"},
		{"GET", "/attach/ns/p/uid-1/c", "", "ns/p/uid-1"},
		{"POST", "/portForward/ns/p", "", "ns/p/"},
		{"POST", "/portForward/ns/p/uid-1?port=80", "", "ns/p/uid-1"},
		{"POST", "/run/ns/p/uid-1/c?cmd=x", "", "ns/p/uid-1"},
		{"POST", "/checkpoint/ns/p/c", "", "ns/p/"},
	} {
		code, body := f.do(t, "admin", c.method, c.path)
		if code != http.StatusTeapot || body != "as it is" {
			t.Errorf("%s %s: the answer became %d %q", c.method, c.path, code, body)
			continue
		}
		if seen.Method != c.method || seen.URL.String() != agentapi.PathKubelet+c.path {
			t.Errorf("%s %s reached the cell as %s %s", c.method, c.path, seen.Method, seen.URL)
		}
		if got := f.cells.got[len(f.cells.got)-1]; got != c.cell {
			t.Errorf("%s: asked for the cell of %s, want %s", c.path, got, c.cell)
		}
		if seen.Header.Get("Authorization") != "" || seen.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("%s: the cell got %v", c.path, seen.Header)
		}
	}
}

func TestOddNamesInThePathAreRefused(t *testing.T) {
	f := serve(t, says("reached"))
	for _, path := range []string{
		"/containerLogs/ns/p/a%2Fb", "/containerLogs/ns/a%2F..%2Fb/c", "/exec/ns/%2e%2e/c", "/exec/n%25s/p/c",
	} {
		if code, body := f.do(t, "admin", "POST", path); code == 200 || strings.Contains(body, "reached") {
			t.Errorf("POST %s: %d %q", path, code, body)
		}
		if code, body := f.do(t, "admin", "GET", path); code == 200 || strings.Contains(body, "reached") {
			t.Errorf("GET %s: %d %q", path, code, body)
		}
	}
	if len(f.cells.got) != 0 {
		t.Errorf("cells were looked up: %q", f.cells.got)
	}
}

// upgrade opens a connection of its own and asks for an upgrade.
func upgrade(t *testing.T, f *fixture, protocol, header string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := tls.Dial("tcp", f.addr, f.tls())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET /exec/ns/p/c?command=cat HTTP/1.1\r\nHost: kip\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s\r\n", protocol, header)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != protocol {
		t.Fatalf("upgrade to %s: %s %v", protocol, resp.Status, resp.Header)
	}
	return conn, in
}

// echo switches protocols and echoes; headers gets those of the request.
func echo(headers chan<- http.Header) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header.Clone()
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		io.Copy(conn, buffered)
	}
}

func TestUpgradesPassBothWays(t *testing.T) {
	headers := make(chan http.Header, 1)
	f := serve(t, echo(headers))
	for _, c := range []struct{ protocol, header string }{
		{"SPDY/3.1", "Authorization: Bearer admin\r\nX-Stream-Protocol-Version: v5.channel.k8s.io\r\n"},
		{"websocket", "Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n" +
			// "admin", as a browser would send its token
			"Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWRtaW4\r\n"},
	} {
		conn, in := upgrade(t, f, c.protocol, c.header)
		h := <-headers
		if strings.Contains(fmt.Sprint(h), "YWRtaW4") || h.Get("Authorization") != "" {
			t.Errorf("the cell got the caller's credentials: %v", h)
		}
		if v := h.Get("X-Stream-Protocol-Version") + h.Get("Sec-WebSocket-Protocol"); v != "v5.channel.k8s.io" {
			t.Errorf("the protocol that was asked for became %q", v)
		}
		for _, word := range []string{"first", "second"} { // each back before the next is sent
			io.WriteString(conn, word)
			got := make([]byte, len(word))
			if _, err := io.ReadFull(in, got); err != nil || string(got) != word {
				t.Fatalf("%s: %q came back as %q, %v", c.protocol, word, got, err)
			}
		}
		conn.Close()
	}
}

func TestStoppingEndsOpenStreams(t *testing.T) {
	headers := make(chan http.Header, 1)
	f := serve(t, echo(headers))
	conn, in := upgrade(t, f, "SPDY/3.1", "Authorization: Bearer admin\r\n")
	<-headers
	f.stop()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := in.ReadByte(); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the stream is still open: %v", err)
	}
}

// command is a container's process that reads its input and exits with 7.
type command struct{}

func (command) ExecInContainer(_ context.Context, _, _, _ string, cmd []string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan servercommand.TerminalSize, _ time.Duration) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%q %s", cmd, text)
	return utilexec.CodeExitError{Err: errors.New("exited"), Code: 7}
}

func TestExecPassesInputOutputAndExitCode(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		options, err := servercommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		servercommand.ServeExec(w, r, command{}, "p", "", "c", r.URL.Query()["command"], options,
			time.Minute, time.Minute, servercommand.SupportedStreamingProtocols)
	})
	u, err := url.Parse("https://" + f.addr + "/exec/ns/p/c?command=sh&command=-c&command=exit+7&input=1&output=1&error=1")
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{Host: "https://" + f.addr, BearerToken: "admin", TLSClientConfig: rest.TLSClientConfig{CAData: f.ca.pem}}
	exec, err := clientcommand.NewSPDYExecutor(config, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	err = exec.StreamWithContext(t.Context(), clientcommand.StreamOptions{Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &stderr})
	var exit utilexec.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 7 {
		t.Errorf("got %v, want exit status 7", err)
	}
	if out.String() != `["sh" "-c" "exit 7"] input` {
		t.Errorf("output %q", out.String())
	}
}

func TestFollowedLogsComeLineByLineAndEndWithTheCaller(t *testing.T) {
	more, gone := make(chan struct{}), make(chan struct{})
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "one\n")
		http.NewResponseController(w).Flush()
		<-more
		io.WriteString(w, "two\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", "https://"+f.addr+"/containerLogs/ns/p/c?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer admin")
	resp, err := f.client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	// The second line is written only when the first has come: nothing buffers.
	if line, err := in.ReadString('\n'); line != "one\n" {
		t.Fatalf("first line %q, %v", line, err)
	}
	close(more)
	if line, err := in.ReadString('\n'); line != "two\n" {
		t.Fatalf("second line %q, %v", line, err)
	}
	cancel()
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the cell never heard that the caller has gone")
	}
}

func TestWithoutACellTheAnswerSaysWhy(t *testing.T) {
	ended := fmt.Errorf("lookup: %w", &EndedError{UID: "u1", Phase: corev1.PodSucceeded})
	waiting := &WaitingError{Why: "no capacity for c5.large"}
	none := fmt.Errorf("lookup: %w", &NoMachineError{Why: "it is a DaemonSet's"})
	f := serve(t, says("from the cell"))
	for _, c := range []struct {
		method, path string
		err          error
		code         int
		body         string
	}{
		{"GET", "/containerLogs/ns/p/c?tailLines=1", ended, 200, "saved u1 c tailLines=1"},
		{"POST", "/exec/ns/p/c", ended, 400, `pod "p" has ended (phase Succeeded) and its cell is gone: exec is not possible`},
		{"GET", "/containerLogs/ns/p/c", waiting, 400, `container "c" in pod "p" is waiting to start: no capacity for c5.large`},
		{"POST", "/portForward/ns/p", waiting, 400, `pod "p" is waiting to start: no capacity for c5.large`},
		{"GET", "/containerLogs/ns/p/c", none, 400, `pod "p" has no machine: it is a DaemonSet's`},
		{"POST", "/exec/ns/p/uid-1/c", none, 400, `pod "p" has no machine: it is a DaemonSet's`},
		{"POST", "/attach/ns/p/c", none, 400, `pod "p" has no machine: it is a DaemonSet's`},
		{"POST", "/portForward/ns/p", none, 400, `pod "p" has no machine: it is a DaemonSet's`},
		{"GET", "/containerLogs/ns/p/c", ErrPodNotFound, 404, `pod "p" does not exist in namespace "ns" on node kip-0`},
		{"GET", "/containerLogs/ns/p/c", errors.New("no route"), 502, "the cell of pod ns/p cannot be reached: no route"},
	} {
		f.cells.errs = []error{c.err}
		if code, body := f.do(t, "admin", c.method, c.path); code != c.code || strings.TrimSpace(body) != c.body {
			t.Errorf("%s %s with %v: got %d %q, want %d %q", c.method, c.path, c.err, code, body, c.code, c.body)
		}
	}
}

// A kubelet that is to start a pod has not seen it at first. The API server answers 404 without a text, and a kubelet
// on a node none at all for a pod that exists.
func TestAKubeletThatDoesNotKnowItsPodYetIsNotBelieved(t *testing.T) {
	var answer string
	f := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, answer, http.StatusNotFound) })
	const begun = "is not available: the kubelet of its cell has just started, or the pod is being deleted and that kubelet has removed it"
	for _, c := range []struct {
		method, path, kubelet string
		code                  int
		says                  string
	}{
		{"GET", "/containerLogs/ns/b/c?follow=true", `pod "b" does not exist`, 400,
			`container "c" in pod "b" is waiting to start: ContainerCreating`},
		{"GET", "/containerLogs/ns/inits/c", `pod "inits" does not exist`, 400,
			`container "c" in pod "inits" is waiting to start: PodInitializing`},
		{"POST", "/exec/ns/b/c", "pod does not exist", 400, `container "c" in pod "b" is waiting to start: ContainerCreating`},
		{"POST", "/attach/ns/b/uid-1/c", "pod does not exist", 400, `container "c" in pod "b" is waiting to start: ContainerCreating`},
		{"POST", "/portForward/ns/b", "pod does not exist", 400, `pod "b" is waiting to start: ContainerCreating`},
		{"POST", "/exec/ns/ran/c", "pod does not exist", 400, `container "c" in pod "ran" ` + begun},
		{"GET", "/containerLogs/ns/ran/c", `pod "ran" does not exist`, 400, `container "c" in pod "ran" ` + begun},
		{"GET", "/containerLogs/ns/gone/c", `pod "gone" does not exist`, 404, `pod "gone" does not exist`},
		{"GET", "/containerLogs/ns/b/x", `container "x" not found in pod "b"`, 404, `container "x" not found in pod "b"`},
		{"GET", "/containerLogs/ns/b/x", strings.Repeat("x", 5000), 404, strings.Repeat("x", 5000)},
	} {
		answer = c.kubelet
		if code, body := f.do(t, "admin", c.method, c.path); code != c.code || strings.TrimSpace(body) != c.says {
			t.Errorf("%s %s: %d %.200q, want %d %.200q", c.method, c.path, code, body, c.code, c.says)
		}
	}
}

func TestAPodThatHasJustBeenBoundIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cells, health := &fakeCells{conn: toServer{}}, &state{}
		p := &Port{c: PortConfig{Cells: cells, Healthy: health.healthy}}
		const polls = int(bindingTimeout / bindingPoll)
		cells.errs = append(slices.Repeat([]error{ErrPodNotFound}, polls-1), nil)
		if conn, err := p.conn(t.Context(), target{namespace: "ns", pod: "p"}); conn != cells.conn || err != nil {
			t.Errorf("a pod that comes at the last moment: %v, %v", conn, err)
		}
		cells.errs = []error{ErrPodNotFound}
		began := time.Now()
		_, err := p.conn(t.Context(), target{namespace: "ns", pod: "p"})
		if took := time.Since(began); !errors.Is(err, ErrPodNotFound) || took != bindingTimeout {
			t.Errorf("a pod that does not come: %v after %v, want %v after %v", err, took, ErrPodNotFound, bindingTimeout)
		}
	})
	// Before the pods are listed there is no telling.
	f := serve(t, says("from the cell"))
	f.cells.errs = []error{ErrPodNotFound}
	f.health.set(errors.New("not listed"))
	if code, body := f.do(t, "admin", "GET", "/containerLogs/ns/p/c"); code != 502 || !strings.Contains(body, "not listed") {
		t.Errorf("%d %q", code, body)
	}
}

func TestACellThatBreaksOffIsABadGatewayUnlessItHasEnded(t *testing.T) {
	f := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if code, body := f.do(t, "admin", "GET", "/containerLogs/ns/p/c"); code != 502 || !strings.Contains(body, "did not answer") {
		t.Errorf("got %d %q", code, body)
	}
	// The pod ended while its cell was being asked: the saved log answers.
	f.cells.errs = []error{nil, &EndedError{UID: "u1"}}
	if code, body := f.do(t, "admin", "GET", "/containerLogs/ns/p/c"); code != 200 || body != "saved u1 c " {
		t.Errorf("got %d %q", code, body)
	}
}

func TestACellCannotSendTheCallerElsewhere(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://169.254.169.254/", http.StatusFound)
	})
	client := f.client(t)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return errors.New("redirected") }
	r, err := http.NewRequest("GET", "https://"+f.addr+"/containerLogs/ns/p/c", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer admin")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Location") != "" {
		t.Errorf("got %s to %q", resp.Status, resp.Header.Get("Location"))
	}
}

func TestPodsAndHealth(t *testing.T) {
	f := serve(t, says(""))
	for path, want := range map[string][]string{
		"/pods": {"a", "b", "inits", "ran"}, "/pods/": {"a", "b", "inits", "ran"}, "/runningpods/": {"a"},
	} {
		_, body := f.do(t, "admin", "GET", path)
		var list corev1.PodList
		if err := json.Unmarshal([]byte(body), &list); err != nil || list.Kind != "PodList" || list.APIVersion != "v1" {
			t.Errorf("%s: %v, %+v", path, err, list.TypeMeta)
		}
		var names []string
		for _, p := range list.Items {
			names = append(names, p.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: %v, want %v", path, names, want)
		}
	}
	if code, body := f.do(t, "admin", "GET", "/healthz"); code != 200 || body != "ok" {
		t.Errorf("healthy: %d %q", code, body)
	}
	f.health.set(errors.New("etcd is away"))
	if code, body := f.do(t, "admin", "GET", "/healthz"); code != 500 || !strings.Contains(body, "etcd is away") {
		t.Errorf("unhealthy: %d %q", code, body)
	}
}

func TestFileCertificateFollowsItsFilesAndKeepsTheLastWholePair(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	ca := newAuthority(t, "ca")
	var mtime int64
	write := func(file string, data []byte) {
		t.Helper()
		mtime++ // the file system's own clock may be too coarse for a test
		if err := errors.Join(os.WriteFile(file, data, 0o600), os.Chtimes(file, time.Time{}, time.Unix(mtime, 0))); err != nil {
			t.Fatal(err)
		}
	}
	name := func(f *FileCertificate) string {
		t.Helper()
		c, err := f.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.Subject.CommonName
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := NewFileCertificate(OfKubeletPort, certFile, keyFile, log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without files: %v", err)
	}
	if _, err := NewFileCertificate(OfKubeletPort, certFile, "", log); err == nil || !strings.Contains(err.Error(), KeyFileEnv) {
		t.Errorf("without a key: %v", err)
	}
	cert, key := ca.issue(t, "first", x509.ExtKeyUsageServerAuth)
	write(certFile, cert)
	write(keyFile, key)
	f, err := NewFileCertificate(OfKubeletPort, certFile, keyFile, log)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = ca.issue(t, "second", x509.ExtKeyUsageServerAuth)
	write(certFile, cert)
	if got := name(f); got != "first" {
		t.Errorf("half written: %s", got)
	}
	write(keyFile, key)
	if got := name(f); got != "second" {
		t.Errorf("written: %s", got)
	}
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	if got := name(f); got != "second" {
		t.Errorf("removed: %s", got)
	}
}

func TestClientCASources(t *testing.T) {
	fromFile, published := newAuthority(t, "file").pem, newAuthority(t, "published").pem
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, fromFile, 0o600); err != nil {
		t.Fatal(err)
	}
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data:       map[string]string{"client-ca-file": string(published)},
	}
	may := fake.NewClientset(configMap)
	mayNot := fake.NewClientset(configMap)
	mayNot.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "x", errors.New("no"))
	})
	soon := fake.NewClientset(configMap)
	soon.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("starting"))
	})
	for name, c := range map[string]struct {
		file   string
		client kubernetes.Interface
		later  *corev1.ConfigMap // published when the port follows it
		want   []byte
		fail   bool
	}{
		"file":               {file, may, nil, fromFile, false},
		"no such file":       {file + "x", may, nil, nil, true},
		"published":          {"", may, nil, published, false},
		"published later":    {"", fake.NewClientset(), configMap, published, false},
		"forbidden":          {"", mayNot, nil, nil, false},
		"server cannot tell": {"", soon, nil, published, false},
	} {
		t.Run(name, func(t *testing.T) {
			ca, err := ClientCA(t.Context(), c.file, c.client, slog.New(slog.DiscardHandler))
			if (err != nil) != c.fail {
				t.Fatal(err)
			}
			if c.want == nil {
				if ca != nil {
					t.Errorf("got %s", ca.CurrentCABundleContent())
				}
				return
			}
			if c.file == "" {
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- FollowClientCA(ctx, ca) }()
				defer func() {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				}()
				if c.later != nil {
					if _, err := c.client.CoreV1().ConfigMaps("kube-system").Create(ctx, c.later, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				eventually(t, "the ConfigMap is read", func() bool { return ca.CurrentCABundleContent() != nil })
			}
			if !bytes.Equal(ca.CurrentCABundleContent(), c.want) {
				t.Error("it is another CA")
			}
		})
	}
}
