package hollow

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/elotl/kip/internal/agentapi"
)

// What a cell is said to use: an idle node, and a pod that does a little.
const (
	nodeMilliCPU, podMilliCPU       = 5, 20
	nodeMemoryBytes, podMemoryBytes = 48 << 20, 32 << 20
)

// maxConfig and maxFirewall bound what Kip sends, as itzo does.
const maxConfig, maxFirewall = 1 << 20, 8 << 20

// ServeHTTP is the agent's HTTP API, and the kubelet's below agentapi.PathKubelet.
func (m *machine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, kubelet := strings.CutPrefix(r.URL.Path, agentapi.PathKubelet+"/")
	switch {
	case kubelet:
		m.serveKubelet(w, r, path)
	case r.Method == http.MethodPut && path == agentapi.PathConfig:
		m.putConfig(w, r)
	case r.Method == http.MethodGet && path == agentapi.PathStatus:
		answerJSON(w, m.agentStatus())
	case r.Method == http.MethodPut && path == agentapi.PathFirewall:
		m.putFirewall(w, r)
	case r.Method == http.MethodGet && path == agentapi.PathFirewall:
		m.mu.Lock()
		digest := m.firewall
		m.mu.Unlock()
		answerJSON(w, agentapi.FirewallStatus{Digest: digest})
	default:
		http.NotFound(w, r)
	}
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", jsonBody)
	_ = json.NewEncoder(w).Encode(v) // a client that is gone needs no answer
}

// putFirewall notes what is in force. A hollow pod sends no packets.
func (m *machine) putFirewall(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFirewall))
	if err != nil {
		http.Error(w, fmt.Sprintf("read the firewall's rules: %v", err), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.firewall = agentapi.Digest(body)
}

func (m *machine) putConfig(w http.ResponseWriter, r *http.Request) {
	var c agentapi.Config
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfig)).Decode(&c); err != nil {
		http.Error(w, fmt.Sprintf("the configuration is not valid JSON: %v", err), http.StatusBadRequest)
		return
	}
	switch {
	case c.NodeName == "":
		http.Error(w, "nodeName is empty, it must name the virtual node", http.StatusBadRequest)
	case !c.NodeIP.IsValid() || !c.PodIP.IsValid():
		http.Error(w, fmt.Sprintf("nodeIP %q and podIP %q must be IP addresses", c.NodeIP, c.PodIP), http.StatusBadRequest)
	default:
		m.configure(c)
	}
}

// agentStatus says what an agent whose parts all run says.
func (m *machine) agentStatus() agentapi.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	kubelet := agentapi.Component{Name: "kubelet", PID: 2}
	if m.config == nil {
		kubelet = agentapi.Component{Name: "kubelet", Waiting: "waiting for its configuration from Kip"}
	}
	return agentapi.Status{
		CellID: m.user.CellID, Version: "hollow",
		Components: []agentapi.Component{{Name: "containerd", PID: 1}, kubelet},
	}
}

func (m *machine) serveKubelet(w http.ResponseWriter, r *http.Request, path string) {
	m.mu.Lock()
	configured := m.config != nil
	m.mu.Unlock()
	if !configured {
		http.Error(w, "the cell's kubelet does not run yet", http.StatusServiceUnavailable)
		return
	}
	what, rest, _ := strings.Cut(path, "/")
	switch {
	case what == "exec" || what == "attach" || what == "portForward" || what == "run":
		http.Error(w, "a hollow cell runs no process", http.StatusNotImplemented)
	case r.Method != http.MethodGet:
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
	case path == "healthz":
		_, _ = io.WriteString(w, "ok")
	case what == "containerLogs":
		m.logs(w, r, rest)
	case path == "stats/summary":
		answerJSON(w, m.summary())
	case path == "metrics/resource":
		m.metrics(w)
	default:
		http.NotFound(w, r)
	}
}

// logs answers one line for a container that has begun to run, and, if asked to
// follow it, nothing more until whoever asked has gone.
func (m *machine) logs(w http.ResponseWriter, r *http.Request, path string) {
	parts := strings.Split(path, "/")
	m.mu.Lock()
	pod := m.pod
	var known, begun bool
	var restarts int32
	var started time.Time
	if pod != nil && len(parts) == 3 && pod.namespace == parts[0] && pod.name == parts[1] {
		for _, c := range pod.containers {
			known = known || c.name == parts[2]
		}
		begun, restarts, started = pod.phase != starting, pod.restartCount, pod.started
	} else {
		pod = nil
	}
	m.mu.Unlock()
	query := r.URL.Query()
	switch {
	case pod == nil:
		http.Error(w, fmt.Sprintf("pod %q does not exist", path), http.StatusNotFound)
		return
	case !known:
		http.Error(w, fmt.Sprintf("container %q in pod %q is not available", parts[2], parts[1]), http.StatusBadRequest)
		return
	case !begun:
		http.Error(w, fmt.Sprintf("container %q in pod %q is waiting to start: ContainerCreating", parts[2], parts[1]), http.StatusBadRequest)
		return
	case query.Get("previous") == "true":
		if restarts == 0 {
			http.Error(w, fmt.Sprintf("previous terminated container %q in pod %q not found", parts[2], parts[1]), http.StatusBadRequest)
			return
		}
		restarts--
	}
	w.Header().Set("Content-Type", "text/plain")
	line := fmt.Sprintf("container %s of pod %s/%s, run %d, on hollow instance %s\n", parts[2], parts[0], parts[1], restarts, m.instanceID)
	if query.Get("timestamps") == "true" {
		line = started.UTC().Format(time.RFC3339Nano) + " " + line
	}
	_, _ = io.WriteString(w, line)
	if query.Get("follow") == "true" {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// usage is what a cell's parts have used.
type usage struct {
	now time.Time
	// bootedFor and startedFor are how long node and pod have run.
	bootedFor, startedFor time.Duration
	nodeName              string
	pod                   *workload // a copy; nil without one that runs
}

func (m *machine) usage() usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := usage{now: m.fleet.cfg.Clock.Now(), nodeName: m.config.NodeName}
	u.bootedFor = u.now.Sub(m.bootedAt)
	if m.pod != nil && m.pod.phase == running {
		pod := *m.pod
		u.pod, u.startedFor = &pod, u.now.Sub(pod.started)
	}
	return u
}

// cores are the core-seconds of so many thousandths of a core.
func cores(milli int, d time.Duration) float64 { return float64(milli) / 1000 * d.Seconds() }

func cpuStats(now metav1.Time, milli int, d time.Duration) *stats.CPUStats {
	nano, total := uint64(milli)*1e6, uint64(cores(milli, d)*1e9)
	return &stats.CPUStats{Time: now, UsageNanoCores: &nano, UsageCoreNanoSeconds: &total}
}

func memoryStats(now metav1.Time, bytes uint64) *stats.MemoryStats {
	return &stats.MemoryStats{
		Time:            now,
		UsageBytes:      &bytes,
		WorkingSetBytes: &bytes,
		RSSBytes:        &bytes,
	}
}

func (m *machine) summary() stats.Summary {
	u := m.usage()
	now := metav1.NewTime(u.now)
	s := stats.Summary{Node: stats.NodeStats{
		NodeName:  u.nodeName,
		StartTime: metav1.NewTime(u.now.Add(-u.bootedFor)),
		CPU:       cpuStats(now, nodeMilliCPU, u.bootedFor),
		Memory:    memoryStats(now, nodeMemoryBytes),
	}}
	if u.pod == nil {
		return s
	}
	started := metav1.NewTime(u.pod.started)
	pod := stats.PodStats{
		PodRef:    stats.PodReference{Name: u.pod.name, Namespace: u.pod.namespace, UID: string(u.pod.uid)},
		StartTime: started,
	}
	for _, c := range u.pod.containers {
		pod.Containers = append(pod.Containers, stats.ContainerStats{
			Name:      c.name,
			StartTime: started,
			CPU:       cpuStats(now, podMilliCPU, u.startedFor),
			Memory:    memoryStats(now, podMemoryBytes),
		})
	}
	n := len(pod.Containers)
	pod.CPU, pod.Memory = cpuStats(now, n*podMilliCPU, u.startedFor), memoryStats(now, uint64(n)*podMemoryBytes)
	s.Pods = []stats.PodStats{pod}
	return s
}

// metrics answers what a kubelet does at /metrics/resource.
func (m *machine) metrics(w http.ResponseWriter) {
	u := m.usage()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	var b strings.Builder
	family := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	at := u.now.UnixMilli()
	family("node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds")
	fmt.Fprintf(&b, "node_cpu_usage_seconds_total %g %d\n", cores(nodeMilliCPU, u.bootedFor), at)
	family("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes")
	fmt.Fprintf(&b, "node_memory_working_set_bytes %d %d\n", nodeMemoryBytes, at)
	if pod := u.pod; pod != nil {
		labels := fmt.Sprintf("namespace=%q,pod=%q", pod.namespace, pod.name)
		each := func(name, kind, help, format string, value any) {
			family(name, kind, help)
			for _, c := range pod.containers {
				fmt.Fprintf(&b, "%s{container=%q,%s} "+format+" %d\n", name, c.name, labels, value, at)
			}
		}
		each("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the container in core-seconds", "%g",
			cores(podMilliCPU, u.startedFor))
		each("container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes", "%d", podMemoryBytes)
		each("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds", "%d", pod.started.Unix())
		n := len(pod.containers)
		family("pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds")
		fmt.Fprintf(&b, "pod_cpu_usage_seconds_total{%s} %g %d\n", labels, cores(n*podMilliCPU, u.startedFor), at)
		family("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes")
		fmt.Fprintf(&b, "pod_memory_working_set_bytes{%s} %d %d\n", labels, n*podMemoryBytes, at)
	}
	family("resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise")
	b.WriteString("resource_scrape_error 0\n")
	_, _ = io.WriteString(w, b.String())
}
