//go:build e2e

package pods

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/test/namespace"
)

// sysctl is one of this host, which cells of this world run on.
func sysctl(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestAPodSetsTheUnsafeSysctlsThatItIsGranted(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	before := sysctl(t, "net/core/somaxconn")
	s.Apply(namespace.Bare("a", `  restartPolicy: Never
  securityContext: {sysctls: [{name: net.core.somaxconn, value: "1234"}]}
  containers:
  - {name: main, image: 'busybox:1.36', command: [cat, /proc/sys/net/core/somaxconn]}
`))
	s.WaitPod("a", "has Succeeded", namespace.HasPhase(corev1.PodSucceeded))
	if log := s.Kubectl("logs", "a"); log != "1234\n" {
		t.Errorf("the pod has %q", log)
	}
	if now := sysctl(t, "net/core/somaxconn"); now != before {
		t.Errorf("the host has %s, and had %s", now, before)
	}
	s.Eventually("the cell is gone", s.NoCells)
}

// To Kip these are cells of EC2. Their agents know that they share a kernel, and have sysctls of their own all the same.
func TestHostSettingsAreRefusedWhereCellsShareAKernel(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	maps := sysctl(t, "vm/max_map_count")
	s.Apply(strings.Replace(namespace.Bare("a", `  restartPolicy: Never
  hostNetwork: true
  containers:
  - {name: main, image: 'busybox:1.36', command: [cat, /proc/sys/net/core/somaxconn]}
`), "{name: a}", `{name: a, annotations: {pod.elotl.co/host-sysctls: "vm.max_map_count=262145"}}`, 1))
	s.WaitEvent("a", "HostSettingsRefused", "set sysctl vm.max_map_count=262145: this machine shares its kernel with others")
	s.Eventually("the cell is gone", s.NoCells)
	s.Kubectl("annotate", "pod", "a", "--overwrite", "pod.elotl.co/host-sysctls=net.core.somaxcon=4321")
	s.WaitEvent("a", "HostSettingsRefused", "set sysctl net.core.somaxcon=4321: the kernel has no such sysctl")
	s.Eventually("the cell is gone", s.NoCells)
	s.Kubectl("annotate", "pod", "a", "--overwrite", "pod.elotl.co/host-sysctls=net.core.somaxconn=4321")
	s.WaitPod("a", "has Succeeded", namespace.HasPhase(corev1.PodSucceeded))
	if log := s.Kubectl("logs", "a"); log != "4321\n" {
		t.Errorf("the pod has %q", log)
	}
	if now := sysctl(t, "vm/max_map_count"); now != maps {
		t.Errorf("the host's vm.max_map_count is %s, and was %s", now, maps)
	}
}
