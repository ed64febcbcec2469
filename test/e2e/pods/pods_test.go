//go:build e2e

package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

func TestAJobRunsOnACellOfItsOwnAndItsLogOutlivesTheCell(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(`apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {type: virtual-kubelet}
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'echo hello from $(hostname)']
        resources: {requests: {cpu: 100m, memory: 32Mi}}
`)
	s.Kubectl("wait", "--for=condition=complete", "job/j", "--timeout=5m")
	s.Eventually("the cell is gone", s.NoCells)
	if log := s.Kubectl("logs", "job/j"); !strings.HasPrefix(log, "hello from j-") {
		t.Fatalf("the log is %q", log)
	}
}

func TestABarePodRunsOnTheCheapestTypeThatFits(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	// A t3.micro has more memory than that, and sustains 200m.
	s.Apply(namespace.Bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    resources: {requests: {cpu: 400m, memory: 300Mi}}
`))
	pod := s.WaitReady("a")
	cell := s.CellOf("a")
	if cell.Status.InstanceType != "t3.small" || cell.Status.Phase != "Bound" || cell.Status.Pod.UID != pod.UID ||
		cell.Status.IP != pod.Status.PodIP {
		t.Fatalf("the cell is %+v; the pod's address is %s", cell.Status, pod.Status.PodIP)
	}
	if !strings.Contains(cell.Status.Reason, "cheapest") {
		t.Fatalf("the cell does not say why it is a t3.small: %q", cell.Status.Reason)
	}
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
}

func TestADeploymentIsScaledUpAndDown(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(`apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 0
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: 'busybox:1.36', command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']}
`)
	for _, n := range []int{3, 1} {
		s.Kubectl("scale", "deployment/d", fmt.Sprintf("--replicas=%d", n))
		s.Eventually(fmt.Sprintf("%d ready pods, each on its own cell", n), func(ctx context.Context) error {
			pods, err := world.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			ready := map[string]bool{}
			for i := range pods.Items {
				if namespace.IsReady(&pods.Items[i]) {
					ready[pods.Items[i].Name] = true
				}
			}
			cells, err := s.Cells(ctx)
			if err != nil {
				return err
			}
			instances := map[string]bool{}
			for _, c := range cells {
				instances[c.Status.InstanceID] = true
			}
			if len(pods.Items) != n || len(ready) != n || len(cells) != n || len(instances) != n {
				return fmt.Errorf("%d pods, %d ready, %d cells, %d instances", len(pods.Items), len(ready), len(cells), len(instances))
			}
			return nil
		})
	}
}

func TestAPodThatFailsOnceIsNotRunAgain(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  restartPolicy: Never
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'echo so long; exit 3']}
`))
	pod := s.WaitPod("a", "has Failed", namespace.HasPhase(corev1.PodFailed))
	if code := pod.Status.ContainerStatuses[0].State.Terminated.ExitCode; code != 3 {
		t.Fatalf("exit code %d, want 3", code)
	}
	s.Eventually("the cell is gone", s.NoCells)
	if log := s.Kubectl("logs", "a"); log != "so long\n" {
		t.Fatalf("the log is %q", log)
	}
}

// The scheduler has written a condition, of which a kubelet that rejects its pod wants to know nothing.
func TestAPodThatItsKubeletRejectsFailsAndItsCellEnds(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  restartPolicy: Never
  securityContext: {sysctls: [{name: kernel.msgmax, value: "70000"}]}
  containers:
  - {name: main, image: 'busybox:1.36', command: ["true"]}
`))
	pod := s.WaitPod("a", "has Failed", namespace.HasPhase(corev1.PodFailed))
	if pod.Status.Reason != "SysctlForbidden" {
		t.Errorf("its reason is %q: %s", pod.Status.Reason, pod.Status.Message)
	}
	s.Eventually("the cell is gone", s.NoCells)
}

// Each of its containers has an entry in the status, and each mount one in that.
func TestAPodOfManyContainersAndMountsEnds(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	var spec strings.Builder
	spec.WriteString("  restartPolicy: Never\n  volumes:\n")
	for v := range 15 {
		fmt.Fprintf(&spec, "  - {name: v%d, emptyDir: {}}\n", v)
	}
	spec.WriteString("  containers:\n")
	for c := range 30 {
		fmt.Fprintf(&spec, "  - name: c%d\n    image: busybox:1.36\n    command: ['true']\n    volumeMounts:\n", c)
		for v := range 15 {
			fmt.Fprintf(&spec, "    - {name: v%d, mountPath: /mounts/%d}\n", v, v)
		}
	}
	s.Apply(namespace.Bare("a", spec.String()))
	s.WaitPod("a", "has Succeeded", namespace.HasPhase(corev1.PodSucceeded))
	s.Eventually("the cell is gone", s.NoCells)
}

// The DaemonSet asks for virtual nodes: its pod has the affinity to one node, and the
// tolerations, that no pod of a Deployment has. Its controller makes no pod before the template tolerates the node's taint.
func TestAPodOfADaemonSetRunsOnACellAndComesAgain(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}, annotations: {pod.elotl.co/machine: "true"}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]
` + namespace.Sleeps)
	first := s.WaitPodOf("d", "")
	if first.Spec.NodeName != harness.Node || first.Spec.Affinity == nil {
		t.Errorf("pod %s is on %q, with the affinity %v", first.Name, first.Spec.NodeName, first.Spec.Affinity)
	}
	cell := s.CellOf(first.Name)
	s.Kubectl("delete", "pod", first.Name, "--wait=false")
	second := s.WaitPodOf("d", first.Name)
	s.WaitGone(first.Name)
	if now := s.CellOf(second.Name); now.Name == cell.Name {
		t.Errorf("both pods had cell %s", cell.Name)
	}
	s.Eventually("exec in the second pod", s.ExecTrue(second.Name))
	s.Eventually("the DaemonSet counts one pod, on one node", func(ctx context.Context) error {
		d, err := world.Admin.AppsV1().DaemonSets(s.NS).Get(ctx, "d", metav1.GetOptions{})
		if err == nil && (d.Status.DesiredNumberScheduled != 1 || d.Status.NumberReady != 1 || d.Status.NumberMisscheduled != 0) {
			err = fmt.Errorf("it counts %+v", d.Status)
		}
		return err
	})
	s.Kubectl("delete", "daemonset", "d")
	s.WaitGone(second.Name)
	s.NoOtherCells()
}

// As an agent that a person installs on every node: it tolerates everything, and knows nothing of Kip.
func TestAPodOfADaemonSetStandsOnTheNodeWithoutAMachine(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	const set = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  minReadySeconds: 1
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      hostNetwork: true
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
` + namespace.Sleeps
	s.Apply(set)
	rolledOut := func() { s.Kubectl("rollout", "status", "daemonset/agent", "--timeout=2m") }
	rolledOut()
	first := s.WaitPodOf("agent", "")
	stands := func(p *corev1.Pod) {
		t.Helper()
		if apiv1.WithoutMachine(p) == nil || p.Status.Phase != corev1.PodRunning || p.Status.PodIP != "" || p.Spec.NodeName != harness.Node {
			t.Errorf("pod %s on %s has the status %+v", p.Name, p.Spec.NodeName, p.Status)
		}
	}
	stands(first)
	for _, args := range [][]string{
		{"logs", first.Name}, {"exec", first.Name, "--", "true"}, {"attach", first.Name}, {"port-forward", first.Name, ":80"},
	} {
		s.says(args, first.Name, "has no machine", "pod.elotl.co/machine")
	}
	ofFirst := "--field-selector=reason=NoMachine,involvedObject.name=" + first.Name
	out := s.Kubectl("get", "events", ofFirst, "-o=jsonpath={.items[*].message}")
	if strings.Count(out, "no machine for a pod of a DaemonSet") != 1 {
		t.Errorf("its Events say %q", out)
	}
	// The rollout of another template replaces it, and ends.
	s.Kubectl("set", "env", "daemonset/agent", "VERSION=2")
	rolledOut()
	second := s.WaitPodOf("agent", first.Name)
	stands(second)
	s.WaitGone(first.Name)
	s.NoOtherCells(second.Name)
	if err := s.NoCellOf(second.Name)(t.Context()); err != nil {
		t.Error(err)
	}
	s.Kubectl("delete", "daemonset", "agent")
	s.WaitGone(second.Name)
	if err := s.NoCells(t.Context()); err != nil {
		t.Error(err)
	}
}

// says checks that kubectl fails with words about a pod.
func (s *space) says(args []string, words ...string) {
	s.Helper()
	_, code, stderr := s.Try(args...)
	for _, word := range words {
		if code == 0 || !strings.Contains(stderr, word) {
			s.Errorf("kubectl %v ends with %d and %q, without %q", args, code, stderr, word)
		}
	}
}

func TestAFinalizerHoldsThePodAndNotItsCell(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(strings.Replace(namespace.Sleeper("held"), "{name: held}", "{name: held, finalizers: [example.com/hold]}", 1))
	let := func(ctx context.Context) error {
		_, err := world.Admin.CoreV1().Pods(s.NS).Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		return err
	}
	// Also for a test that fails, or its namespace would stay.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), namespace.Patience)
		defer cancel()
		if err := let(ctx); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	before := s.WaitReady("held")
	s.Kubectl("delete", "pod", "held", "--wait=false")
	s.Eventually("its cell is gone", s.NoCellOf("held"))
	s.WaitPod("held", "has ended, and is held", func(p *corev1.Pod) bool {
		return p.UID == before.UID && p.DeletionTimestamp != nil && p.Status.Phase == corev1.PodSucceeded
	})
	// It gets no other cell, while other pods do.
	s.Never("the pod has a cell again", s.NoCellOf("held"), func(ctx context.Context) error {
		p, err := s.Pod(ctx, "held")
		if err == nil && p.DeletionTimestamp == nil {
			err = errors.New("the pod is not being deleted")
		}
		return err
	})
	s.Apply(namespace.Sleeper("other"))
	s.WaitReady("other")
	if err := s.NoCellOf("held")(t.Context()); err != nil {
		t.Error(err)
	}
	if err := let(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.WaitGone("held")
}
