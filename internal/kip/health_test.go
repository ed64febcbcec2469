package kip

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
)

// Health is for a kubelet's probe, which has no token.
func TestMetricsAskWhoScrapesAndHealthDoesNot(t *testing.T) {
	reviews := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			APIVersion string         `json:"apiVersion"`
			Kind       string         `json:"kind"`
			Spec       map[string]any `json:"spec"`
			Status     map[string]any `json:"status"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if token, ok := review.Spec["token"]; ok {
			// It says for whom of those that are asked about a token is.
			review.Status = map[string]any{"authenticated": true, "user": map[string]any{"username": token}}
			if token != "others" {
				review.Status["audiences"] = review.Spec["audiences"]
			}
		} else {
			review.Status = map[string]any{"allowed": review.Spec["user"] == "scraper"}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	defer reviews.Close()
	api, err := kubernetes.NewForConfig(&rest.Config{Host: reviews.URL})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	k := &process{
		Options: Options{NodeName: "kip-0", NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, MetricsAudience: "kip", Log: log},
		clock:   clock.RealClock{},
		metrics: metrics.New(metrics.Config{Clock: clock.RealClock{}, Log: log}),
		api:     &apiServer{asKip: api, reviews: api},
		store:   store.Memory(nil),
		role:    &role{},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- k.serveMetricsOn(ctx, l) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	for _, c := range []struct {
		path, token string
		code        int
		says        string
	}{
		{"/metrics", "", 401, "Unauthorized"},
		{"/metrics", "others", 401, "Unauthorized"},
		{"/metrics", "somebody", 403, "somebody"},
		{"/metrics", "scraper", 200, "go_gc"},
		{"/healthz", "", 200, "ok"},
		{"/readyz", "", 200, "ok"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String()+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatalf("%s: %v", c.path, err)
		}
		body, err := io.ReadAll(resp.Body)
		closeErr := resp.Body.Close()
		if err != nil || closeErr != nil || resp.StatusCode != c.code || !strings.Contains(string(body), c.says) {
			t.Errorf("%s with the token %q: %d %.200s (%v, %v), want %d with %q",
				c.path, c.token, resp.StatusCode, body, err, closeErr, c.code, c.says)
		}
	}
}

// Who scrapes can verify it, also where the API server verifies no kubelet.
func TestMetricsHaveACertificateOfTheirOwn(t *testing.T) {
	authority, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	issue := func(name string) (certFile, keyFile string) {
		own, err := authority.Server([]string{name}, nil)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := own.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
		if err := errors.Join(
			os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600),
			os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600),
		); err != nil {
			t.Fatal(err)
		}
		return certFile, keyFile
	}
	kubeletCert, kubeletKey := issue("kubelet")
	t.Setenv(node.CertFileEnv, kubeletCert)
	t.Setenv(node.KeyFileEnv, kubeletKey)
	k := &process{
		Options: Options{NodeName: "kip-0", NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Log: slog.New(slog.DiscardHandler)},
		clock:   clock.RealClock{},
	}
	served := func() string {
		t.Helper()
		get, err := k.metricsCertificate()
		if err != nil {
			t.Fatal(err)
		}
		pair, err := get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.DNSNames[0]
	}
	if name := served(); name != "kubelet" {
		t.Errorf("without files of their own they are served as %s", name)
	}
	k.MetricsCertFile, k.MetricsKeyFile = issue("metrics")
	if name := served(); name != "metrics" {
		t.Errorf("with files of their own they are served as %s", name)
	}
	k.MetricsKeyFile = ""
	if _, err := k.metricsCertificate(); err == nil || !strings.Contains(err.Error(), "--metrics-key-file") {
		t.Errorf("with a certificate and no key: %v", err)
	}
}

func TestAProcessThatStandsByIsReadyAndALeaderWhenItsChecksHold(t *testing.T) {
	k := &process{role: &role{}}
	broken := errors.New("broken")
	asked := 0
	holds := func(*leading) error { asked++; return broken }
	if err := k.role.ready(holds); err != nil || asked != 0 {
		t.Errorf("one that stands by: %v, after %d questions", err, asked)
	}
	k.role.elected.Store(true)
	if err := k.role.ready(holds); err == nil || asked != 0 {
		t.Errorf("one whose work has not begun: %v, after %d questions", err, asked)
	}
	k.role.leading.Store(&leading{term: &term{process: k}})
	if err := k.role.ready(holds); !errors.Is(err, broken) {
		t.Errorf("one that leads: %v, want what its check says", err)
	}
	names := map[string]bool{"store": true}
	for _, c := range checksOfLeader {
		if names[c.name] || c.holds == nil {
			t.Errorf("check %q is there twice, or asks nothing", c.name)
		}
		names[c.name] = true
	}
}
