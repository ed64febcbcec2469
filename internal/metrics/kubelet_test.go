package metrics

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/version"
)

// podWith is a pod whose sandbox runs or not, with containers in these states.
func podWith(sandbox bool, states ...corev1.ContainerState) *corev1.Pod {
	pod := &corev1.Pod{}
	if sandbox {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	}
	for _, s := range states {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{State: s})
	}
	return pod
}

// kubeletText is what a node's kubelet port answers at a path.
func kubeletText(t *testing.T, cfg KubeletConfig, path string) string {
	t.Helper()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	m := New(Config{Clock: clocktesting.NewFakePassiveClock(now), Log: slog.New(slog.DiscardHandler)})
	m.restRequests.WithLabelValues("node", "GET", "200").Inc()
	cfg.Node = "kip-0"
	if cfg.Pods == nil {
		cfg.Pods = func() []*corev1.Pod { return nil }
	}
	if cfg.Certificate == nil {
		cfg.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{{0}}, Leaf: &x509.Certificate{NotAfter: now.Add(time.Hour)}}, nil
		}
	}
	if cfg.Volumes == nil {
		cfg.Volumes = func(context.Context) ([]stats.Volume, error) { return nil, errors.New("not running") }
	}
	w := httptest.NewRecorder()
	m.Kubelet(cfg).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// has fails unless the text has each line, or the beginning of one.
func has(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line) {
			t.Errorf("there is no line %q in\n%s", line, text)
		}
	}
}

// The names are those that the dashboards and alerts of kubernetes-mixin read of a kubelet, as
// far as Kip knows their values.
func TestAKubeletPortTellsWhatKipKnowsByTheNamesOfAKubelet(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	number, healthy := uint64(7), false
	text := kubeletText(t, KubeletConfig{
		Pods: func() []*corev1.Pod {
			return []*corev1.Pod{podWith(true, running, running, ended), podWith(true, waiting), podWith(false, ended), podWith(false)}
		},
		Volumes: func(context.Context) ([]stats.Volume, error) {
			return []stats.Volume{{Namespace: "ns", Claim: "data", CapacityBytes: &number, AvailableBytes: &number, Abnormal: &healthy}}, nil
		},
	}, "/metrics")
	has(t, text,
		`kubelet_node_name{node="kip-0"} 1`,
		"kubelet_running_pods 2",
		`kubelet_running_containers{container_state="running"} 2`,
		`kubelet_running_containers{container_state="exited"} 2`,
		"kubelet_certificate_manager_server_ttl_seconds 3600",
		`kubelet_volume_stats_capacity_bytes{namespace="ns",persistentvolumeclaim="data"} 7`,
		`kubelet_volume_stats_available_bytes{namespace="ns",persistentvolumeclaim="data"} 7`,
		`kubelet_volume_stats_health_status_abnormal{namespace="ns",persistentvolumeclaim="data"} 0`,
		`rest_client_requests_total{client="node",code="200",verb="GET"} 1`,
		"go_goroutines ", "process_cpu_seconds_total ", "process_resident_memory_bytes ", "process_start_time_seconds ",
		"kubernetes_build_info{", // with all of the version below
	)
	if !strings.Contains(text, `git_version="`+version.Kubernetes+`"`) {
		t.Errorf("no version of the kubelet in\n%s", text)
	}
	for _, unknown := range []string{"kubelet_volume_stats_inodes", "kubelet_runtime_operations", "kubelet_pleg", "kip_"} {
		if strings.Contains(text, unknown) {
			t.Errorf("it tells %s, which nobody knows", unknown)
		}
	}
}

func TestAScrapeOfAKubeletPortLacksOnlyWhatIsNotKnown(t *testing.T) {
	text := kubeletText(t, KubeletConfig{
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none yet") },
	}, "/metrics")
	has(t, text, "kubelet_running_pods 0", "kubelet_certificate_manager_server_ttl_seconds +Inf")
	if strings.Contains(text, "kubelet_volume_stats") {
		t.Errorf("volumes of a node whose cells cannot be asked:\n%s", text)
	}
}

func TestTheHealthOfANodeIsAnSLI(t *testing.T) {
	for want, healthy := range map[string]error{"1": nil, "0": errors.New("no store")} {
		text := kubeletText(t, KubeletConfig{Healthy: func(context.Context) error { return healthy }}, "/metrics/slis")
		has(t, text, `kubernetes_healthcheck{name="syncloop",type="healthz"} `+want)
	}
}
