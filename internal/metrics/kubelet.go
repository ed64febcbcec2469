package metrics

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"net/http"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/version"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// KubeletConfig says what a kubelet port knows of its virtual node. All fields are required.
type KubeletConfig struct {
	Node string
	// Pods are those bound to the node.
	Pods func() []*corev1.Pod
	// Certificate is the one that the port serves with.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Volumes are those of the claims of the node's pods.
	Volumes func(context.Context) ([]stats.Volume, error)
	// Healthy says why Kip cannot do its work now, or nil.
	Healthy func(context.Context) error
}

// The paths that Kubelet answers.
const (
	kubeletPath = "/metrics"
	slisPath    = "/metrics/slis"
)

// Kubelet serves /metrics and /metrics/slis of a kubelet port: of the names that a kubelet has
// there, those whose values Kip knows. What a kubelet counts of its container runtime is each
// cell's own, and not here.
func (m *Metrics) Kubelet(cfg KubeletConfig) http.Handler {
	node, slis := prometheus.NewRegistry(), prometheus.NewRegistry()
	node.MustRegister(&kubelet{cfg: cfg, m: m}, m.restRequests, m.restDuration,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	slis.MustRegister(healthSLI{cfg.Healthy})
	mux := http.NewServeMux()
	for path, registry := range map[string]*prometheus.Registry{kubeletPath: node, slisPath: slis} {
		mux.Handle("GET "+path, promhttp.HandlerFor(registry, promhttp.HandlerOpts{
			ErrorLog:            promLog{m.cfg.Log},
			ErrorHandling:       promhttp.ContinueOnError,
			EnableOpenMetrics:   true,
			MaxRequestsInFlight: scrapesAtOnce,
		}))
	}
	return mux
}

// scrapeTimeout is how long a scrape may take: package stats waits 7 s for all cells, and
// Prometheus 10 s for the answer.
const scrapeTimeout = 8 * time.Second

// kubelet tells of a virtual node by the names of a kubelet: those of kubelet/metrics/metrics.go
// of k8s.io/kubernetes, and of volume_stats.go below it, with their help.
type kubelet struct {
	cfg KubeletConfig
	m   *Metrics
}

var _ prometheus.Collector = (*kubelet)(nil)

func claimDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_volume_stats_"+name, help, []string{"namespace", "persistentvolumeclaim"}, nil)
}

var (
	nodeNameDesc = prometheus.NewDesc("kubelet_node_name", "The node's name. The count is always 1.", []string{"node"}, nil)
	buildDesc    = prometheus.NewDesc("kubernetes_build_info",
		"A metric with a constant '1' value labeled by the version of the kubelet that runs on the node's cells.",
		[]string{"major", "minor", "git_version", "go_version", "compiler", "platform"}, nil)
	runningPodsDesc = prometheus.NewDesc("kubelet_running_pods", "Number of pods that have a running pod sandbox", nil, nil)
	containersDesc  = prometheus.NewDesc("kubelet_running_containers", "Number of containers currently running",
		[]string{"container_state"}, nil)
	servingDesc = prometheus.NewDesc("kubelet_certificate_manager_server_ttl_seconds",
		"Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry "+
			"(negative if already expired). If serving certificate is invalid or unused, the value will be +INF.", nil, nil)

	capacityDesc   = claimDesc("capacity_bytes", "Capacity in bytes of the volume")
	availableDesc  = claimDesc("available_bytes", "Number of available bytes in the volume")
	usedDesc       = claimDesc("used_bytes", "Number of used bytes in the volume")
	inodesDesc     = claimDesc("inodes", "Maximum number of inodes in the volume")
	inodesFreeDesc = claimDesc("inodes_free", "Number of free inodes in the volume")
	inodesUsedDesc = claimDesc("inodes_used", "Number of used inodes in the volume")
	abnormalDesc   = claimDesc("health_status_abnormal",
		"Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy")

	kubeletDescs = []*prometheus.Desc{
		nodeNameDesc, buildDesc, runningPodsDesc, containersDesc, servingDesc,
		capacityDesc, availableDesc, usedDesc, inodesDesc, inodesFreeDesc, inodesUsedDesc, abnormalDesc,
	}
)

// Describe implements prometheus.Collector.
func (k *kubelet) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range kubeletDescs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (k *kubelet) Collect(ch chan<- prometheus.Metric) {
	tell := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	tell(nodeNameDesc, 1, k.cfg.Node)
	major, minor, _ := strings.Cut(strings.TrimPrefix(version.Kubernetes, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	tell(buildDesc, 1, major, minor, version.Kubernetes, runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
	pods, running, exited := countsOf(k.cfg.Pods())
	tell(runningPodsDesc, float64(pods))
	tell(containersDesc, float64(running), "running")
	tell(containersDesc, float64(exited), "exited")
	tell(servingDesc, k.serving())
	k.volumes(tell)
}

// countsOf counts pods whose sandbox runs, and their containers, as the API has them.
func countsOf(all []*corev1.Pod) (pods, running, exited int) {
	for _, pod := range all {
		sandbox := false
		for _, c := range pod.Status.Conditions {
			sandbox = sandbox || c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
		}
		for _, list := range [][]corev1.ContainerStatus{
			pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
		} {
			for _, c := range list {
				switch {
				case c.State.Running != nil:
					running++
					sandbox = true
				case c.State.Terminated != nil:
					exited++
				}
			}
		}
		if sandbox {
			pods++
		}
	}
	return pods, running, exited
}

// serving is for how many seconds the serving certificate is valid.
func (k *kubelet) serving() float64 {
	leaf, err := leafOf(k.cfg.Certificate)
	if err != nil {
		return math.Inf(1)
	}
	return leaf.NotAfter.Sub(k.m.cfg.Clock.Now()).Seconds()
}

func leafOf(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (*x509.Certificate, error) {
	c, err := certificate(&tls.ClientHelloInfo{})
	switch {
	case err != nil:
		return nil, err
	case c == nil || len(c.Certificate) == 0:
		return nil, errors.New("there is no certificate")
	case c.Leaf != nil:
		return c.Leaf, nil
	}
	return x509.ParseCertificate(c.Certificate[0])
}

// volumes tells of the volumes of claims, as far as their cells do.
func (k *kubelet) volumes(tell func(d *prometheus.Desc, v float64, labels ...string)) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	list, err := k.cfg.Volumes(ctx)
	if err != nil {
		k.m.cfg.Log.Debug("failed to read the sizes of volumes from cells", "node", k.cfg.Node, "err", err)
		return
	}
	for _, v := range list {
		for _, of := range []struct {
			desc *prometheus.Desc
			v    *uint64
		}{
			{capacityDesc, v.CapacityBytes},
			{availableDesc, v.AvailableBytes},
			{usedDesc, v.UsedBytes},
			{inodesDesc, v.Inodes},
			{inodesFreeDesc, v.InodesFree},
			{inodesUsedDesc, v.InodesUsed},
		} {
			if of.v != nil {
				tell(of.desc, float64(*of.v), v.Namespace, v.Claim)
			}
		}
		if v.Abnormal != nil {
			abnormal := 0.0
			if *v.Abnormal {
				abnormal = 1
			}
			tell(abnormalDesc, abnormal, v.Namespace, v.Claim)
		}
	}
}

// healthSLI tells of the health of the node as component-base/metrics/prometheus/slis does.
type healthSLI struct{ healthy func(context.Context) error }

var _ prometheus.Collector = healthSLI{}

var healthDesc = prometheus.NewDesc("kubernetes_healthcheck", "This metric records the result of a single healthcheck.",
	[]string{"name", "type"}, nil)

// Describe implements prometheus.Collector.
func (h healthSLI) Describe(ch chan<- *prometheus.Desc) { ch <- healthDesc }

// Collect implements prometheus.Collector.
func (h healthSLI) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	v := 1.0
	if h.healthy(ctx) != nil {
		v = 0
	}
	ch <- prometheus.MustNewConstMetric(healthDesc, prometheus.GaugeValue, v, "syncloop", "healthz")
}
