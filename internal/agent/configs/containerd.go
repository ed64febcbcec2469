package configs

import (
	"fmt"
	"strings"
)

// PauseImage is the name of the image of a pod's sandbox. It is imported from a
// file of the machine's root, under a name that no registry is asked for.
const PauseImage = "kip.elotl.co/pause:1"

// Paths that the parts of a cell share.
const (
	ContainerdSocket = "/run/containerd/containerd.sock"
	ContainerdRoot   = "/var/lib/containerd"
	ContainerdState  = "/run/containerd"
	ContainerdConfig = "/etc/containerd/config.toml"
	RegistryDir      = "/etc/containerd/certs.d"
	CNIConfDir       = "/etc/cni/net.d"
	CNIPluginDir     = "/opt/cni/bin" // of plugins that are not itzo
	CNIConfFile      = CNIConfDir + "/10-kip.conflist"
	KubeletRoot      = "/var/lib/kubelet"
	SwapFile         = KubeletRoot + "/kip-swap" // on Kip's image straight on its ext4: the root's overlay takes none
	KubeletConfig    = KubeletRoot + "/config.yaml"
	Kubeconfig       = KubeletRoot + "/kubeconfig"
	KubeProxyConfig  = "/var/lib/kube-proxy/config.yaml"
	StaticPodDir     = "/etc/kubernetes/manifests"
	ImageProviders   = KubeletRoot + "/image-credentials.json"
	DevicePluginDir  = KubeletRoot + "/device-plugins"
)

// DevicePlugin is itzo's program that offers GPUs to the kubelet (package deviceplugin).
const DevicePlugin = "device-plugin"

// disabledPlugins are those containerd plugins that no cell uses. Each costs
// memory, start time or an open door; what they are for is in the comment.
var disabledPlugins = []string{
	"io.containerd.nri.v1.nri",                   // node resource interface: foreign plugins
	"io.containerd.image-verifier.v1.bindir",     // external image verifiers
	"io.containerd.monitor.container.v1.restart", // restarts are the kubelet's business
	"io.containerd.monitor.task.v1.cgroups",      // Prometheus metrics of tasks, which nobody scrapes
	"io.containerd.internal.v1.tracing",          // OpenTelemetry export
	"io.containerd.tracing.processor.v1.otlp",    //
	"io.containerd.server.v1.grpc-tcp",           // no gRPC on TCP
	"io.containerd.server.v1.metrics",            // no metrics port
	"io.containerd.server.v1.debug",              // no debug socket
	"io.containerd.metrics.v1.grpc-prometheus",   //
	"io.containerd.snapshotter.v1.blockfile",     // other snapshotters than overlayfs
	"io.containerd.snapshotter.v1.erofs",         //
	"io.containerd.snapshotter.v1.native",        //
	"io.containerd.differ.v1.erofs",              //
	"io.containerd.mount-handler.v1.erofs",       //
}

// Containerd renders containerd's configuration. binDir holds the CNI plugin;
// pause is the image of sandboxes, empty for containerd's own default.
func Containerd(h Host, binDir, pause string) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("version = 4")
	p("root = %q", ContainerdRoot)
	p("state = %q", ContainerdState)
	p("imports = []") // nothing but this file
	p("disabled_plugins = [")
	for _, d := range disabledPlugins {
		p("  %q,", d)
	}
	p("]")
	p("")
	p("[plugins.'io.containerd.server.v1.grpc']")
	p("  address = %q", ContainerdSocket)
	p("[plugins.'io.containerd.server.v1.ttrpc']")
	p("  address = %q", ContainerdSocket+".ttrpc")
	p("")
	p("[plugins.'io.containerd.cri.v1.images']")
	p("  snapshotter = 'overlayfs'")
	// Seconds between looks at the size of containers' own layers, by which the
	// kubelet holds a pod to its limit of ephemeral storage.
	p("  stats_collect_period = 30")
	if pause != "" {
		p("  [plugins.'io.containerd.cri.v1.images'.pinned_images]")
		p("    sandbox = %q", pause)
	}
	p("  [plugins.'io.containerd.cri.v1.images'.registry]")
	p("    config_path = %q", RegistryDir)
	p("[plugins.'io.containerd.transfer.v1.local']") // pulls through the transfer service
	p("  config_path = %q", RegistryDir)
	p("")
	p("[plugins.'io.containerd.cri.v1.runtime']")
	p("  enable_cdi = true")
	p("  enable_criu = false")
	p("  disable_apparmor = %t", !h.AppArmor)
	p("  restrict_oom_score_adj = %t", !h.SysResource)
	p("  disable_hugetlb_controller = %t", !h.Hugetlb)
	p("  tolerate_missing_hugetlb_controller = true")
	// The kubelet takes containers' figures from cAdvisor.
	p("  stats_collect_period = '60s'")
	p("  stats_retention_period = '2m'")
	p("  [plugins.'io.containerd.cri.v1.runtime'.cni]")
	p("    bin_dirs = [%q, %q]", binDir, CNIPluginDir)
	p("    conf_dir = %q", CNIConfDir)
	p("    max_conf_num = 1")
	p("    use_internal_loopback = true")
	p("  [plugins.'io.containerd.cri.v1.runtime'.containerd]")
	p("    default_runtime_name = 'runc'")
	p("    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]")
	p("      runtime_type = 'io.containerd.runc.v2'")
	p("      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]")
	p("        SystemdCgroup = false")
	p("")
	p("[plugins.'io.containerd.grpc.v1.cri']")
	p("  disable_tcp_service = true")
	p("  stream_server_address = '127.0.0.1'")
	p("  stream_server_port = '0'")
	return b.String()
}
