//go:build e2e

package qemu

import (
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/test/namespace"
)

// bound is a limit or a sysctl of a pod: on nodes of others, and on a cell of the image. "" is the
// kernel's own, which may depend on the machine's memory. Sources:
//
//   - EKS: Amazon Linux 2023. https://github.com/awslabs/amazon-eks-ami at 81fec2e8:
//     nodeadm/internal/containerd/base-runtime-spec.json, templates/al2023/runtime/rootfs/etc/sysctl.conf and
//     sysctl.d/99-amazon.conf. systemd 252 sets file-max and nr_open (src/core/main.c), the default of locked
//     memory, and pid_max.
//   - Bottlerocket: https://github.com/bottlerocket-os/bottlerocket-core-kit at a10182f9:
//     packages/release/release-sysctl.conf, which quotes the defaults of Amazon Linux, and
//     packages/containerd/containerd.service; open files in Bottlerocket's CHANGELOG (pull request 1180).
//   - GKE: Container-Optimized OS. Its overlay is not in a place that can be cited; what Kubernetes' own cluster on it
//     sets is (cluster/gce/gci/configure-helper.sh and configure.sh at v1.36.3).
//   - All: the kubelet sets overcommit_memory, panic and panic_on_oops (pkg/kubelet/cm/container_manager_linux.go),
//     kube-proxy nf_conntrack_max (pkg/proxy/conntrack/sysctls.go).
type bound struct {
	what                   string
	eks, bottlerocket, gke string
	kip                    string
	why                    string // where a cell has another value than EKS
}

// processLimits are by their name in /proc/PID/limits: soft and hard.
var processLimits = []bound{
	{"Max open files", "65536 1048576", "65536 1048576", "1048576 1048576", "65536 1048576", ""},
	{"Max processes", "unlimited unlimited", "unlimited unlimited", "", "unlimited unlimited", ""},
	{"Max locked memory", "8388608 8388608", "8388608 8388608", "", "8388608 8388608", ""},
	{"Max stack size", "8388608 unlimited", "8388608 unlimited", "", "8388608 unlimited", ""},
	{
		"Max core file size", "unlimited unlimited", "unlimited unlimited", "", "0 unlimited",
		"nothing collects core files on a cell: they would fill the pod's disk; a process may raise it",
	},
}

// sysctls are those that a pod sees: a network namespace of its own has no net.*.neigh.default.gc_thresh, which are the machine's.
var sysctls = []bound{
	{"vm/max_map_count", "524288", "524288", "", "524288", ""},
	{"vm/overcommit_memory", "1", "1", "1", "1", ""},
	{"kernel/panic", "10", "10", "10", "10", ""},
	{"kernel/panic_on_oops", "1", "1", "1", "1", ""},
	{"kernel/pid_max", "4194304", "", "", "4194304", ""},
	{"kernel/threads-max", "", "", "", "", ""},
	{"fs/file-max", "9223372036854775807", "", "", "9223372036854775807", ""},
	{"fs/nr_open", "1073741816", "", "", "1048576", "a container may open no more either"},
	{"fs/inotify/max_user_instances", "8192", "8192", "8192", "8192", ""},
	{"fs/inotify/max_user_watches", "524288", "524288", "65536", "524288", ""},
	{"net/core/somaxconn", "4096", "4096", "4096", "4096", ""},
	{"net/ipv4/ip_local_port_range", "32768 60999", "32768 60999", "32768 60999", "32768 60999", ""},
	{"net/netfilter/nf_conntrack_max", "131072", "131072", "131072", "131072", ""}, // of up to 4 processors
	{
		"net/ipv4/tcp_wmem", "4096 20480 4194304", "4096 20480 4194304", "", "",
		"the kernel's grows with what a connection needs, and on a small machine ends sooner",
	},
	{"net/ipv4/ip_default_ttl", "255", "255", "64", "64", "no way has more than 64 hops"},
	{"user/max_user_namespaces", "", "0", "", "", ""},
}

// hasTheLimitsOfANode says where a pod has others than the table.
func hasTheLimitsOfANode(t *testing.T, s *namespace.Space, pod string) {
	t.Helper()
	command := "cat /proc/1/limits"
	for _, b := range sysctls {
		command += "; echo " + b.what + " $(cat /proc/sys/" + b.what + ")"
	}
	has := map[string]string{}
	for line := range strings.Lines(s.Kubectl("exec", pod, "--", "sh", "-c", command)) {
		fields := strings.Fields(line)
		for _, b := range slices.Concat(processLimits, sysctls) {
			if words := strings.Fields(b.what); len(fields) > len(words) && slices.Equal(fields[:len(words)], words) {
				value := fields[len(words):]
				if strings.HasPrefix(b.what, "Max ") && len(value) > 2 {
					value = value[:2] // and its unit
				}
				has[b.what] = strings.Join(value, " ")
			}
		}
	}
	for _, b := range slices.Concat(processLimits, sysctls) {
		if has[b.what] == "" || b.kip != "" && has[b.what] != b.kip {
			t.Errorf("%s of a pod is %q, want %q (EKS %q, Bottlerocket %q, GKE %q)", b.what, has[b.what], b.kip, b.eks, b.bottlerocket, b.gke)
		}
		if b.kip != b.eks && b.why == "" {
			t.Errorf("nobody says why %s differs from that of EKS", b.what)
		}
	}
}
