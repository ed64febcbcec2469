package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// proxyHealth serves what the answer is as kube-proxy's health, with status 503 when
// it says that it is not healthy.
func proxyHealth(t *testing.T) (address string, answer *atomic.Value) {
	t.Helper()
	answer = &atomic.Value{}
	answer.Store(`{"healthy":true}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" {
			http.NotFound(w, r)
			return
		}
		text := answer.Load().(string)
		if strings.Contains(text, `"healthy":false`) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), answer
}

func TestTheGateOfServicesOpensWhenKubeProxyHasWrittenItsRules(t *testing.T) {
	for _, written := range []string{
		`{"lastUpdated":"2026-11-21T13:00:00Z","healthy":true,"status":{"IPv4":{"lastUpdated":"2026-11-21T12:00:00Z","healthy":true}}}`,
		// Later ones are late.
		`{"lastUpdated":"2026-11-21T12:00:00Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2026-11-21T12:00:00Z","healthy":false}}}`,
	} {
		m := newMachine(t)
		address, answer := proxyHealth(t)
		m.proxyHealth = address
		m.file("serving", "", 0o444)
		gate := filepath.Join(m.path("run"), "gates", servicesGate)
		m.file("run/gates/"+servicesGate, "", 0o600) // of an earlier run of the machine
		a := m.agent(false)
		m.run(a)
		if w := put(t, a, config()); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, not := range []string{
			`{}`,
			// Healthy is a kube-proxy from its start on.
			`{"lastUpdated":"2026-11-21T13:00:00Z","currentTime":"2026-11-21T13:00:00Z","healthy":true}`,
			`{"lastUpdated":"2026-11-21T13:00:00Z","healthy":true,"status":{"IPv6":{"lastUpdated":"2026-11-21T12:00:00Z","healthy":true}}}`,
		} {
			answer.Store(not)
			if open, err := rulesWritten(t.Context(), http.DefaultClient, address, []string{"IPv4"}); open || err != nil {
				t.Errorf("%s: %t, %v", not, open, err)
			}
			if _, err := os.Stat(gate); err == nil {
				t.Fatalf("the gate is open with %s", not)
			}
		}
		answer.Store("nonsense")
		if open, err := rulesWritten(t.Context(), http.DefaultClient, address, []string{"IPv4"}); open || err == nil {
			t.Errorf("nonsense is an answer: %t, %v", open, err)
		}
		answer.Store(written)
		eventually(t, "the gate is open", func() bool { _, err := os.Stat(gate); return err == nil })
	}
}

func TestTheRulesOfADualStackCellAreWrittenWhenThoseOfBothFamiliesAre(t *testing.T) {
	address, answer := proxyHealth(t)
	for text, want := range map[string]bool{
		`{"status":{"IPv4":{"lastUpdated":"2026-11-21T12:00:00Z"}}}`:                                               false,
		`{"status":{"IPv6":{"lastUpdated":"2026-11-21T12:00:00Z"}}}`:                                               false,
		`{"status":{"IPv4":{"lastUpdated":"2026-11-21T12:00:00Z"},"IPv6":{"lastUpdated":"2026-11-21T12:00:00Z"}}}`: true,
	} {
		answer.Store(text)
		if open, err := rulesWritten(t.Context(), http.DefaultClient, address, []string{"IPv4", "IPv6"}); open != want || err != nil {
			t.Errorf("%s: %t, %v", text, open, err)
		}
	}
}

func TestAnotherConfigurationStartsKubeProxyAgainAndClosesItsGate(t *testing.T) {
	m := newMachine(t)
	address, answer := proxyHealth(t)
	m.proxyHealth = address
	m.file("serving", "", 0o444)
	gate := filepath.Join(m.path("run"), "gates", servicesGate)
	a := m.agent(false)
	m.run(a)
	const written = `{"status":{"IPv4":{"lastUpdated":"2026-11-21T12:00:00Z"}}}`
	answer.Store(written)
	put(t, a, config())
	eventually(t, "the gate is open", func() bool { _, err := os.Stat(gate); return err == nil })
	eventually(t, "the kubelet runs", func() bool { _, k := status(t, a); return k.PID != 0 })
	_, first := status(t, a)
	answer.Store(`{}`)
	other := config()
	other.NodeName = "kip-1"
	if w := put(t, a, other); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if _, err := os.Stat(gate); err == nil {
		t.Error("the gate is open before the new rules are written")
	}
	eventually(t, "another one runs", func() bool { _, k := status(t, a); return k.PID != 0 && k.PID != first.PID })
	answer.Store(written)
	eventually(t, "the gate is open again", func() bool { _, err := os.Stat(gate); return err == nil })
}
