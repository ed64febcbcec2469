package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agent/network"
	"github.com/elotl/kip/internal/agentapi"
)

// isOpen says whether pods are let through.
func (m *machine) isOpen(a *Agent) bool {
	ctx, end := context.WithCancel(m.t.Context())
	end()
	return network.Wait(ctx, a.gateDir(), policyGate) == nil
}

func putFirewall(t *testing.T, a *Agent, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, agentapi.PathFirewall, strings.NewReader(body)))
	return w
}

func digest(t *testing.T, a *Agent) string {
	t.Helper()
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, agentapi.PathFirewall, nil))
	return w.Body.String()
}

func TestAPodIsLetThroughOnceItsRulesAreInForce(t *testing.T) {
	m := newMachine(t)
	rules := `{"podIP":"` + config().PodIP.String() + `"}`
	m.file("run/gates/policy", "", 0o600) // of an earlier boot
	a := m.agent(false)
	stop := m.run(a)
	if w := putFirewall(t, a, rules); w.Code != http.StatusServiceUnavailable {
		t.Errorf("before the configuration: %d %s", w.Code, w.Body)
	}
	put(t, a, config())
	if w := putFirewall(t, a, `{"podIP":"192.0.2.1"}`); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "192.0.2.1") {
		t.Errorf("rules of another pod: %d %s", w.Code, w.Body)
	}
	m.file("nft-fails", "", 0o400)
	if w := putFirewall(t, a, rules); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "no such kernel") {
		t.Errorf("rules that do not come into force: %d %s", w.Code, w.Body)
	}
	if m.isOpen(a) || !strings.Contains(digest(t, a), `""`) {
		t.Fatalf("a pod is let through without rules, digest %s", digest(t, a))
	}
	if err := os.Remove(m.path("nft-fails")); err != nil {
		t.Fatal(err)
	}
	if w := putFirewall(t, a, rules); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if !m.isOpen(a) || !strings.Contains(digest(t, a), agentapi.Digest([]byte(rules))) {
		t.Errorf("open %t, digest %s", m.isOpen(a), digest(t, a))
	}

	stop()
	b := m.agent(false)
	stop = m.run(b)
	if !m.isOpen(b) || digest(t, b) != digest(t, a) {
		t.Errorf("after a restart of the agent: open %t, digest %s", m.isOpen(b), digest(t, b))
	}
	stop()
	if err := os.Remove(m.path("loaded")); err != nil { // as a new boot does
		t.Fatal(err)
	}
	c := m.agent(false)
	m.run(c)
	if m.isOpen(c) {
		t.Error("after a new boot a pod is let through without rules")
	}
}

func TestNoKubeletStartsWithoutTheFirewall(t *testing.T) {
	m := newMachine(t)
	m.file("serving", "", 0o444)
	m.file("nft-fails", "", 0o400)
	a := m.agent(false)
	m.run(a)
	if w := put(t, a, config()); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "firewall") ||
		!strings.Contains(w.Body.String(), "no such kernel") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if _, k := status(t, a); k.PID != 0 || k.Waiting == "" {
		t.Errorf("kubelet %+v", k)
	}
	if err := os.Remove(m.path("nft-fails")); err != nil {
		t.Fatal(err)
	}
	if w := put(t, a, config()); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	eventually(t, "the kubelet starts", m.didIt("kubelet started"))
}
