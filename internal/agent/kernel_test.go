package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agent/configs"
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

// A kubelet counts huge pages when it starts, so another one starts when there are others.
func TestTheKernelHasThePodsHugePagesBeforeItsKubeletStarts(t *testing.T) {
	m := newMachine(t)
	m.file("proc/self/status", "CapEff:\t000001ffffffffff\n", 0o444)
	m.file("proc/meminfo", "MemTotal: 4194304 kB\n", 0o444)
	m.file("serving", "", 0o444)
	const file = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	m.file(file, "0\n", 0o644)
	a := m.agent(false)
	stop := m.run(a)
	configured := func(c agentapi.Config) (told agentapi.Configured) {
		t.Helper()
		w := put(t, a, c)
		if err := json.Unmarshal(w.Body.Bytes(), &told); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d, %s, %v", w.Code, w.Body, err)
		}
		return told
	}
	c := config()
	// A standby cell, of which a pod is not known yet.
	if told := configured(c); told.HugePages != nil || told.NoHugePages != "" {
		t.Errorf("without huge pages it says %+v", told)
	}
	eventually(t, "a kubelet runs", m.didIt("kubelet started"))
	// What the kernel has when a kubelet starts.
	m.file("itzo", strings.Replace(m.read("itzo"), `did "$1 started"`, `did "$1 started with $(cat `+m.path(file)+`) pages"`, 1), 0o755)
	c.HugePages = []agentapi.HugePages{{PageBytes: 2 << 20, Pages: 32}}
	for range 2 { // nothing changes when it is told again
		if told := configured(c); len(told.HugePages) != 1 || told.HugePages[0] != c.HugePages[0] || told.NoHugePages != "" {
			t.Errorf("it says %+v", told)
		}
	}
	eventually(t, "another kubelet runs", m.didIt("kubelet started with 32 pages"))
	stop()
	m.file(file, "0\n", 0o644) // the machine was started anew
	a = m.agent(false)
	m.run(a)
	eventually(t, "its kernel has them again", func() bool { return m.read(file) == "32\n" })
	if told := configured(c); len(told.HugePages) != 1 || told.HugePages[0].Pages != 32 {
		t.Errorf("it says %+v", told)
	}
	c.HugePages = []agentapi.HugePages{{PageBytes: 1 << 30, Pages: 1}}
	if told := configured(c); told.HugePages != nil || told.NoHugePages != "reserve hugepages-1Gi: the kernel has no pages of this size" {
		t.Errorf("of another size it says %+v", told)
	}
}

func (m *machine) read(name string) string {
	m.t.Helper()
	b, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(b)
}

// A kubelet that is to limit swap would not start on cgroup v1.
func TestTheKubeletSharesTheSwapThatTheMachineHas(t *testing.T) {
	for name, tc := range map[string]struct {
		v2     bool
		has    int64
		no     string
		shares bool
	}{
		"":             {v2: true, has: 1 << 30, shares: true},
		"on cgroup v1": {no: "make swap of 1024 MiB: this machine has cgroup v1, and a kubelet limits swap by cgroup v2 alone"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.file("proc/self/status", "CapEff:\t000001ffffffffff\n", 0o444)
			if tc.v2 {
				m.file("sys/fs/cgroup/cgroup.controllers", "memory\n", 0o444)
				m.file("sys/fs/cgroup/cgroup.subtree_control", "memory\n", 0o644)
				m.file("sys/fs/cgroup/system/memory.swap.max", "max\n", 0o644)
				m.file("proc/self/cgroup", "0::/system\n", 0o444)
				// An agent before this one has made it: this test changes nothing of its host.
				m.file("proc/swaps", fmt.Sprintf("Filename Type Size Used Priority\n%s file %d 0 -2\n", configs.SwapFile,
					(1<<30-os.Getpagesize())>>10), 0o444)
			}
			m.file("serving", "", 0o444)
			a := m.agent(false)
			m.run(a)
			c := config()
			for _, asked := range []int64{0, 1 << 30} { // a standby cell, and then its pod's
				c.SwapBytes = asked
				want := agentapi.Configured{}
				if asked > 0 {
					want.SwapBytes, want.NoSwap = tc.has, tc.no
				}
				w := put(t, a, c)
				var told agentapi.Configured
				if err := json.Unmarshal(w.Body.Bytes(), &told); err != nil || w.Code != http.StatusOK || told.SwapBytes != want.SwapBytes ||
					told.NoSwap != want.NoSwap {
					t.Errorf("asked for %d: %d, %s, %v", asked, w.Code, w.Body, err)
				}
				if got := strings.Contains(m.read(configs.KubeletConfig), "swapBehavior: LimitedSwap"); got != (tc.shares && asked > 0) {
					t.Errorf("asked for %d, that its kubelet shares it is %t", asked, got)
				}
			}
		})
	}
}
