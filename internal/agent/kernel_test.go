package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agentapi"
)

func putKernel(t *testing.T, a *Agent, s agentapi.KernelSettings) *httptest.ResponseRecorder {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPut, agentapi.PathKernel, strings.NewReader(string(b))))
	return w
}

// A module brings a sysctl along, which is set next. What kube-proxy sets comes before both.
func TestThePodsModulesAndSysctlsAreTheMachines(t *testing.T) {
	m := newMachine(t)
	address, answer := proxyHealth(t)
	m.proxyHealth = address
	m.file("proc/self/status", "CapEff:\t000001ffffffffff\n", 0o444)
	m.file("serving", "", 0o444)
	m.file("proc/sys/net/netfilter/nf_conntrack_max", "131072\n", 0o644)
	m.file("modprobe", `#!/bin/sh
case "$*" in
br_netfilter) mkdir -p `+m.path("proc/sys/net/bridge")+` && echo 0 >`+m.path("proc/sys/net/bridge/forward")+` ;;
silent) exit 1 ;;
*) echo "modprobe: FATAL: Module $* not found" >&2; exit 1 ;;
esac
`, 0o755)
	a := m.agent(false)
	m.run(a)
	asked := agentapi.KernelSettings{
		Modules: []string{"br_netfilter"},
		Sysctls: []agentapi.Sysctl{{Name: "net.bridge.forward", Value: "1"}, {Name: "net.netfilter.nf_conntrack_max", Value: "262144"}},
	}
	for _, before := range []string{"the kubelet", "kube-proxy's rules"} {
		if w := putKernel(t, a, asked); w.Code != http.StatusServiceUnavailable {
			t.Fatalf("before %s: %d %s", before, w.Code, w.Body)
		}
		put(t, a, config())
	}
	answer.Store(`{"status":{"IPv4":{"lastUpdated":"2026-11-21T12:00:00Z","healthy":true}}}`)
	eventually(t, "the settings are taken", func() bool { return putKernel(t, a, asked).Code == http.StatusOK })
	for file, want := range map[string]string{"net/bridge/forward": "1\n", "net/netfilter/nf_conntrack_max": "262144\n"} {
		if b, err := os.ReadFile(m.path("proc/sys/" + file)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v", file, b, err)
		}
	}
	for module, want := range map[string]string{
		"other":  "load module other: modprobe: FATAL: Module other not found\n",
		"silent": "load module silent: no such module\n",
	} {
		if w := putKernel(t, a, agentapi.KernelSettings{Modules: []string{module}}); w.Code != http.StatusBadRequest || w.Body.String() != want {
			t.Errorf("%d %q, want %q", w.Code, w.Body, want)
		}
	}
}

func TestAMachineThatSharesItsKernelSetsNothingOfOthers(t *testing.T) {
	m := newMachine(t) // without capabilities
	address, answer := proxyHealth(t)
	answer.Store(`{"status":{"IPv4":{"lastUpdated":"2026-11-21T12:00:00Z","healthy":true}}}`)
	m.proxyHealth = address
	m.file("serving", "", 0o444)
	m.file("proc/sys/vm/swappiness", "60\n", 0o644)
	a := m.agent(false)
	m.run(a)
	put(t, a, config())
	asked := agentapi.KernelSettings{Sysctls: []agentapi.Sysctl{{Name: "vm.swappiness", Value: "1"}}}
	eventually(t, "it is refused", func() bool { return putKernel(t, a, asked).Code == http.StatusBadRequest })
	if b, err := os.ReadFile(m.path("proc/sys/vm/swappiness")); err != nil || string(b) != "60\n" {
		t.Errorf("it is %q, %v", b, err)
	}
}
