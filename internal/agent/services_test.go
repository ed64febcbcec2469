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

// proxyMetrics serves what text is as kube-proxy's metrics.
func proxyMetrics(t *testing.T) (address string, text *atomic.Value) {
	t.Helper()
	text = &atomic.Value{}
	text.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, text.Load().(string))
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), text
}

func TestTheGateOfServicesOpensWhenKubeProxyHasWrittenItsRules(t *testing.T) {
	m := newMachine(t)
	address, text := proxyMetrics(t)
	m.proxyMetrics = address
	gate := filepath.Join(m.path("run"), "gates", servicesGate)
	m.file("run/gates/"+servicesGate, "", 0o600) // of an earlier run of the machine
	a := m.agent(false)
	m.run(a)
	if w := put(t, a, config()); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, not := range []string{
		"", "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 0\n",
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} 1.7e+09\n",
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} 1.7e+09\n",
	} {
		text.Store(not)
		if open, err := rulesWritten(t.Context(), http.DefaultClient, address, []string{"IPv4"}); open || err != nil {
			t.Errorf("%q: %t, %v", not, open, err)
		}
		if _, err := os.Stat(gate); err == nil {
			t.Fatalf("the gate is open with %q", not)
		}
	}
	both := []string{"IPv4", "IPv6"}
	one := "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} 1.7e+09\n"
	for written, want := range map[string]bool{one: false, one + strings.Replace(one, "IPv6", "IPv4", 1): true} {
		text.Store(written)
		if open, err := rulesWritten(t.Context(), http.DefaultClient, address, both); open != want || err != nil {
			t.Errorf("two families, and %q: %t, %v", written, open, err)
		}
	}
	text.Store("# HELP x\nkubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.7e+09\nmore 1\n")
	eventually(t, "the gate is open", func() bool { _, err := os.Stat(gate); return err == nil })
}

func TestAnotherConfigurationOfTheKubeletLeavesKubeProxyAlone(t *testing.T) {
	m := newMachine(t)
	a := m.agent(false)
	m.run(a)
	proxy := func() int {
		for _, c := range a.Status().Components {
			if c.Name == "kube-proxy" {
				return c.PID
			}
		}
		return 0
	}
	put(t, a, config())
	eventually(t, "kube-proxy runs", func() bool { return proxy() != 0 })
	first := proxy()
	other := config()
	other.ReservedMemoryBytes = 1 << 20
	if w := put(t, a, other); w.Code != http.StatusOK || proxy() != first {
		t.Errorf("%d, pid %d was %d", w.Code, proxy(), first)
	}
	other.NodeName = "kip-1"
	put(t, a, other)
	eventually(t, "another kube-proxy", func() bool { pid := proxy(); return pid != 0 && pid != first })
}
