package configs

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agentapi"
)

// Files of the machine's own small PKI (package localapi) that the kubelet reads.
type Files struct {
	CA                      string // signs all of them
	ClientCert, ClientKey   string // the kubelet towards the local API endpoint
	ServingCert, ServingKey string // the kubelet's own server
}

// KubeletPort is where the kubelet serves on 127.0.0.1, for itzo only.
const KubeletPort = 10250

// maxPods is the kubelet's own default. Beside its pod a cell runs pods of DaemonSets and node plugins, and
// some that are being torn down are in the kubelet's books.
const maxPods = 110

// reservedPIDs are tasks of the machine that the pods' cgroup may not take: a Go program such as the agent, the kubelet
// or containerd ends when it gets no thread. The kubelet gives pods what is left of the smaller of kernel.pid_max and
// kernel.threads-max (pkg/kubelet/stats/pidlimit), which is some 8000 for each GiB of memory (kernel/fork.c).
const reservedPIDs = 1000

// pidsOfProcessor are tasks beside those for each processor: the kernel's own threads count towards both, too. The kernel's
// least pid_max has 8 for each (PIDS_PER_CPU_MIN in include/linux/threads.h); workqueues start more under load, of which no
// source has a figure, so this is twice as many.
const pidsOfProcessor = 16

// Machine is what the kubelet is to know of the machine.
type Machine struct {
	GPUs bool
	// Swap says that the machine has the swap that its containers share.
	Swap bool
	// Tasks is what its cgroup is bounded to; 0 for no bound. See Host.
	Tasks int64
	// PodGrace is what pods have at most when the machine ends, in whole seconds; 0 where the
	// kubelet is not told that it ends.
	PodGrace time.Duration
	// PluginGrace is what the node plugins of CSI drivers have after that, in whole seconds.
	PluginGrace time.Duration
	Processors  int
}

// Kubelet renders the kubelet's configuration file.
func Kubelet(c agentapi.Config, f Files, m Machine) ([]byte, error) {
	// A map and not the API type: k8s.io/kubelet would bring a good part of the
	// API machinery into a process that is to stay small. A test decodes it
	// strictly with the type.
	cfg := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
	}
	for _, part := range []map[string]any{kubeletServer(f), kubeletAPI(), kubeletContainers(), kubeletReserves(c, m), kubeletPeriods()} {
		maps.Copy(cfg, part)
	}
	if c.Plugins {
		cfg["staticPodPath"] = StaticPodDir
	}
	if len(c.UnsafeSysctls) > 0 {
		cfg["allowedUnsafeSysctls"] = c.UnsafeSysctls
	}
	if m.Swap {
		cfg["memorySwap"] = map[string]any{"swapBehavior": "LimitedSwap"} // a kubelet on cgroup v1 would not start
	}
	if m.Tasks > 0 {
		// What is left of the kernel's tasks may be more than the machine's cgroup has: the local cloud gives a machine 16384.
		cfg["podPidsLimit"] = max(m.Tasks-reservedPIDs, m.Tasks/2)
	}
	if m.PodGrace > 0 {
		seconds := func(d time.Duration) int64 { return int64(d / time.Second) }
		cfg["shutdownGracePeriodByPodPriority"] = []map[string]any{
			{"priority": 0, "shutdownGracePeriodSeconds": seconds(m.PodGrace)},
			{"priority": agentapi.PluginPriority, "shutdownGracePeriodSeconds": seconds(m.PluginGrace)},
		}
	}
	if m.GPUs {
		// The pod is shown when the node has its GPUs, and they are registered when the
		// node has become ready, or soon after.
		cfg["nodeStatusUpdateFrequency"] = "1s"
	}
	if c.ClusterDomain != "" {
		cfg["clusterDomain"] = c.ClusterDomain
	}
	if len(c.ClusterDNS) > 0 {
		cfg["clusterDNS"] = addrs(c.ClusterDNS)
	}
	b, err := yaml.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("render the kubelet's configuration: %w", err)
	}
	return b, nil
}

// kubeletServer is of its server: loopback, and nobody but itzo has a certificate.
func kubeletServer(f Files) map[string]any {
	return map[string]any{
		"address":           "127.0.0.1",
		"port":              KubeletPort,
		"readOnlyPort":      0,
		"healthzPort":       0, // itzo asks :10250/healthz with its certificate
		"tlsCertFile":       f.ServingCert,
		"tlsPrivateKeyFile": f.ServingKey,
		"tlsMinVersion":     "VersionTLS13",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": false},
			"x509":      map[string]any{"clientCAFile": f.CA},
		},
		"authorization":          map[string]any{"mode": "AlwaysAllow"},
		"rotateCertificates":     false,
		"serverTLSBootstrap":     false,
		"enableSystemLogHandler": false,
		"enableProfilingHandler": false,
	}
}

// kubeletAPI is of the cell API, at the other end of the tunnel.
func kubeletAPI() map[string]any {
	return map[string]any{
		"contentType":  "application/json",
		"registerNode": true,
		// Kubernetes leaves trust bundles off by default, since few API servers serve them. Without a volume of them the
		// kubelet asks for none.
		"featureGates": map[string]bool{"ClusterTrustBundle": true, "ClusterTrustBundleProjection": true},
		"configMapAndSecretChangeDetectionStrategy": "Watch",
		"nodeStatusUpdateFrequency":                 "10s",
		"nodeStatusReportFrequency":                 "5m", // or when it changes; the lease is the heartbeat
		"nodeLeaseDurationSeconds":                  40,
	}
}

// kubeletContainers is of containers, their images and their logs.
func kubeletContainers() map[string]any {
	return map[string]any{
		"containerRuntimeEndpoint": "unix://" + ContainerdSocket,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/",
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"cpuCFSQuota":              true,
		"maxPods":                  maxPods,
		"serializeImagePulls":      false,
		"registryPullQPS":          0, // one pod: nothing to be fair to
		"containerLogMaxSize":      "10Mi",
		"containerLogMaxFiles":     5,
		"resolvConf":               "/etc/resolv.conf",
		"volumePluginDir":          KubeletRoot + "/volumeplugins",
		// kubelet's own iptables chains serve node ports and masquerading of
		// kube-proxy, and want an iptables binary.
		"makeIPTablesUtilChains": false,
		// Images are gone with the machine; 100 turns their collection off.
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
	}
}

// kubeletReserves is of what is kept from the pod.
func kubeletReserves(c agentapi.Config, m Machine) map[string]any {
	return map[string]any{
		// The pods' cgroup is limited to the rest, so that a pod cannot starve the
		// agent.
		"enforceNodeAllocatable": []string{"pods"},
		"systemReserved": map[string]string{
			"memory": fmt.Sprint(c.ReservedMemoryBytes),
			"pid":    fmt.Sprint(reservedPIDs + pidsOfProcessor*m.Processors),
		},
		// No memory threshold: eviction is for choosing among pods, and here is
		// one. It would also be taken off what is allocatable, which placement
		// has counted exactly. When memory runs out, the kernel's OOM killer
		// ends the container that grew and the kubelet reports OOMKilled, which
		// tells more than an eviction would. The disk thresholds only keep room
		// for the logs of the agent.
		"evictionHard":                  map[string]string{"nodefs.available": "100Mi", "imagefs.available": "100Mi"},
		"localStorageCapacityIsolation": true,
	}
}

// kubeletPeriods is of how often it looks at what.
func kubeletPeriods() map[string]any {
	return map[string]any{
		// A sync is what brings a changed ConfigMap or Secret, which the watch
		// has fetched at once, into the pod's volumes. With one pod a sync every
		// few seconds costs little.
		"syncFrequency": "5s",
		// Idle CPU: longer periods for what nothing on a cell waits for.
		"containerLogMonitorInterval": "30s",
		"fileCheckFrequency":          "1h",
		"httpCheckFrequency":          "1h",
		"cpuManagerReconcilePeriod":   "1m",
	}
}

func addrs(in []netip.Addr) []string {
	out := make([]string, len(in))
	for i, a := range in {
		out[i] = a.String()
	}
	return out
}

// nodeIPs are the machine's addresses, that of the first family first.
func nodeIPs(c agentapi.Config) []netip.Addr {
	if c.NodeIPv6.IsValid() {
		return []netip.Addr{c.NodeIP, c.NodeIPv6}
	}
	return []netip.Addr{c.NodeIP}
}

// KubeletArgs are the kubelet's arguments beside its configuration file: what
// has no key there. The first one makes it run kube-proxy, too. providerDir holds the plugins of ImageProviders; "" for no such file.
func KubeletArgs(c agentapi.Config, providerDir string) []string {
	args := []string{
		KubeProxyFlag + KubeProxyConfig,
		"--config=" + KubeletConfig,
		"--kubeconfig=" + Kubeconfig,
		"--root-dir=" + KubeletRoot,
		"--cert-dir=" + KubeletRoot + "/pki",
		"--hostname-override=" + c.NodeName,
		// Without it the kubelet resolves its host name, for 10 s a sync where
		// no DNS server answers.
		"--node-ip=" + strings.Join(addrs(nodeIPs(c)), ","),
		// cAdvisor's reading of cgroup figures: the metrics pipeline asks every
		// 15 s or more seldom.
		"--housekeeping-interval=15s",
	}
	if providerDir != "" {
		args = append(args, "--image-credential-provider-config="+ImageProviders, "--image-credential-provider-bin-dir="+providerDir)
	}
	return args
}

// KubeconfigFile renders the kubeconfig by which the kubelet reaches the local
// API endpoint at server (https://127.0.0.1:6422).
func KubeconfigFile(server string, f Files) ([]byte, error) {
	b, err := json.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters":   []any{map[string]any{"name": "cell", "cluster": map[string]any{"server": server, "certificate-authority": f.CA}}},
		"users": []any{map[string]any{"name": "kubelet", "user": map[string]any{"client-certificate": f.ClientCert,
			"client-key": f.ClientKey}}},
		"contexts":        []any{map[string]any{"name": "cell", "context": map[string]any{"cluster": "cell", "user": "kubelet"}}},
		"current-context": "cell",
	})
	if err != nil {
		return nil, fmt.Errorf("render kubeconfig: %w", err)
	}
	return b, nil
}
