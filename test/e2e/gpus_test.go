//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

const resourceGPU = "nvidia.com/gpu"

// withGPUs starts Kip with a type that has two stand-ins for GPUs, with these settings of
// cells, until restore is called or the test ends.
func withGPUs(t *testing.T, cells map[string]any) (restore func()) {
	t.Helper()
	undo, err := world.Reconfigure(t.Context(), func(provider map[string]any) {
		provider["cloud"].(map[string]any)["local"].(map[string]any)["gpus"] = 2
		provider["kubelet"].(map[string]any)["capacity"].(map[string]any)[resourceGPU] = "2"
		maps.Copy(provider["cells"].(map[string]any), cells)
	})
	restore = sync.OnceFunc(func() {
		if err := undo(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	if err != nil {
		t.Fatal(err)
	}
	return restore
}

// gpuContainer is one that asks for so many.
func gpuContainer(name string, count int) string {
	limits := ""
	if count > 0 {
		limits = fmt.Sprintf("%s: %d", resourceGPU, count)
	}
	return fmt.Sprintf(`  - name: %s
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    resources: {limits: {%s}}
`, name, limits)
}

// sees returns what a container of a pod says of its GPUs.
func (s *space) sees(pod, container string) string {
	s.Helper()
	return s.Kubectl("exec", pod, "-c", container, "--", "sh", "-c", `
cd /dev; echo $(ls | grep nvidia) = "$NVIDIA_VISIBLE_DEVICES"
cat /usr/local/nvidia/lib64/libcuda.so.1 2>&1
true > /usr/local/nvidia/lib64/libcuda.so.1 2>&1 && echo written
true > /dev/nvidiactl && nvidia-smi`)
}

// Not parallel: it starts Kip with other settings.
func TestAPodGetsTheGPUsThatItAsksFor(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	restore := withGPUs(t, nil)
	s.Eventually("the virtual node has GPUs", func(ctx context.Context) error {
		node, err := world.Admin.CoreV1().Nodes().Get(ctx, harness.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := node.Status.Allocatable[resourceGPU]; got.Value() != 2 {
			return fmt.Errorf("it has %s", got.String())
		}
		return nil
	})
	s.Apply(namespace.Bare("two", "  containers:\n"+gpuContainer("a", 1)+gpuContainer("b", 1)+gpuContainer("none", 0)))
	s.Apply(namespace.Sleeper("cheap"))
	s.WaitReady("two")
	cell := s.CellOf("two")
	if got := cell.Status.InstanceType; got != "medium-gpu" {
		t.Errorf("the pod is on a %s: want medium-gpu", got)
	}
	var own []string
	for _, container := range []string{"a", "b"} {
		got := s.sees("two", container)
		lines := strings.Split(strings.TrimSpace(got), "\n")
		has, env, _ := strings.Cut(lines[0], " = ")
		nodes := strings.Fields(has)
		if len(nodes) != 3 || !slices.Contains(nodes, "nvidiactl") || !slices.Contains(nodes, "nvidia-uvm") || env != "void" {
			t.Errorf("container %s has the devices %q and NVIDIA_VISIBLE_DEVICES=%s", container, nodes, env)
		}
		for _, n := range nodes {
			if n == "nvidia0" || n == "nvidia1" {
				own = append(own, n)
			}
		}
		if !strings.Contains(got, "A stand-in for the library of a driver.") || strings.Contains(got, "written") ||
			!strings.Contains(got, "Stand-ins for GPUs") {
			t.Errorf("container %s says\n%s", container, got)
		}
	}
	if slices.Sort(own); !slices.Equal(own, []string{"nvidia0", "nvidia1"}) {
		t.Errorf("the containers have the GPUs %q: want each one of its own", own)
	}
	none := s.Kubectl("exec", "two", "-c", "none", "--", "sh", "-c",
		`ls /dev | grep -c nvidia; echo "=$NVIDIA_VISIBLE_DEVICES"; test ! -e /usr/local/nvidia`)
	if none != "0\n=\n" {
		t.Errorf("the container that asks for none has\n%s", none)
	}
	s.WaitReady("cheap")
	if got := s.CellOf("cheap").Status.InstanceType; strings.Contains(got, "gpu") {
		t.Errorf("a pod that asks for no GPU is on a %s", got)
	}
	s.Kubectl("delete", "pod", "two", "cheap", "--wait=false")
	s.WaitGone("two")
	s.WaitGone("cheap")
	restore()
}

// Not parallel: it starts Kip with other settings.
func TestAPodIsShownWhenItsGPUsHaveCome(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	file := filepath.Join(t.TempDir(), "cloud-init.yaml")
	// Before the kubelet runs: as with a driver that is late.
	if err := os.WriteFile(file, []byte("#cloud-config\nruncmd: [rm /dev/nvidia0 /dev/nvidia1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	restore := withGPUs(t, map[string]any{"cloudInitFile": file})
	s.Apply(namespace.Bare("late", "  containers:\n"+gpuContainer("main", 1)))
	s.WaitEvent("late", "GPUsNotReady", "0 of 1 "+resourceGPU)
	pod, err := s.Pod(t.Context(), "late")
	if err != nil || pod.Status.Phase != corev1.PodPending || len(pod.Status.ContainerStatuses) != 0 {
		t.Errorf("before its GPUs are there the pod is %s, its containers %v (%v)", pod.Status.Phase, pod.Status.ContainerStatuses, err)
	}
	if cell := s.CellOf("late"); cell.Status.Phase != apiv1.Ready {
		t.Errorf("its cell is %s: want Ready", cell.Status.Phase)
	}
	if err := unix.Mknod(s.machine("late").path("/dev/nvidia1"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	s.WaitReady("late")
	if got := s.sees("late", "main"); !strings.HasPrefix(got, "nvidia-uvm nvidia1 nvidiactl = void\n") {
		t.Errorf("the pod says\n%s", got)
	}
	s.Kubectl("delete", "pod", "late", "--wait=false")
	s.WaitGone("late")
	restore()
}
