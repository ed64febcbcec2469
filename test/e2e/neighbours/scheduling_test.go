//go:build e2e

package neighbours

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

func TestAQuotaCountsPodsOnCellsAndALimitRangeSizesThem(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(`apiVersion: v1
kind: LimitRange
metadata: {name: sizes}
spec: {limits: [{type: Container, defaultRequest: {cpu: 600m, memory: 600Mi}, default: {cpu: "1", memory: 700Mi}}]}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: two}
spec: {hard: {pods: "2", requests.cpu: 1300m}}
`)
	pod := func(name string) string {
		return namespace.Bare(name, "  containers: [{name: main, image: 'busybox:1.36', command: [sleep, infinity]}]\n")
	}
	s.Eventually("the quota and the limits hold", func(ctx context.Context) error {
		quota, err := world.Admin.CoreV1().ResourceQuotas(s.NS).Get(ctx, "two", metav1.GetOptions{})
		if err != nil || len(quota.Status.Hard) != 2 {
			return fmt.Errorf("the quota is %+v: %w", quota.Status, err)
		}
		asked, err := world.Admin.CoreV1().Pods(s.NS).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "asked"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && asked.Spec.Containers[0].Resources.Requests.Cpu().String() != "600m" {
			err = errors.New("a pod has no default")
		}
		return err
	})
	// Without the LimitRange they would be on a nano.
	for _, name := range []string{"a", "b"} {
		s.Apply(pod(name))
		s.WaitReady(name)
		if got := s.CellOf(name).Status.InstanceType; got != "small" {
			t.Errorf("pod %s is on a %s, want a small", name, got)
		}
	}
	apply := s.Command(t.Context(), "apply", "-f", "-")
	apply.Stdin = strings.NewReader(pod("c"))
	if _, errs, err := namespace.Run(apply); err == nil || !strings.Contains(errs, "exceeded quota: two") {
		t.Errorf("a third pod: %v: %s", err, errs)
	}
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
	s.Eventually("the quota has room again", func(ctx context.Context) error {
		apply := s.Command(ctx, "apply", "-f", "-")
		apply.Stdin = strings.NewReader(pod("c"))
		_, errs, err := namespace.Run(apply)
		if err != nil {
			err = errors.New(errs)
		}
		return err
	})
	s.WaitReady("c")
}

const priorities = `apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: e2e-low}
value: 100
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: e2e-high}
value: 1000
`

// It changes the node's capacity.
func TestAPodOfHigherPriorityTakesThePlaceOfALowerOneOnAFullNode(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.capacity(map[string]any{"cpu": "100", "memory": "1Ti", "pods": fmt.Sprint(s.onNode() + 3)})
	s.cluster(priorities)
	s.Apply(deployment("low", 2, onKip+"      priorityClassName: e2e-low\n", ""))
	low := s.readyPods("low", 2)
	cells := map[string]string{}
	for _, p := range low {
		cells[p.Name] = s.CellOf(p.Name).Name
	}
	high := func(name string) string {
		return strings.Replace(namespace.Sleeper(name), "spec:\n", "spec:\n  priorityClassName: e2e-high\n", 1)
	}

	s.Apply(high("first"))
	s.WaitReady("first")
	if gone, err := s.gone(t.Context(), low); err != nil || len(gone) > 0 {
		t.Errorf("the node had room, and these pods are gone: %v, %v", gone, err)
	}
	s.Apply(high("second"))
	s.WaitReady("second")
	gone, err := s.gone(t.Context(), low)
	if err != nil || len(gone) != 1 {
		t.Fatalf("of the pods of low priority these are gone: %v, %v; want one", gone, err)
	}
	s.WaitEvent(gone[0], "Preempted", "")
	s.WaitGone(gone[0])
	if cell := s.CellOf("second"); cell.Name == cells[gone[0]] {
		t.Errorf("the pod of high priority is on cell %s of the pod before", cell.Name)
	}
	var replaced string
	s.Eventually("another pod of low priority is made", func(ctx context.Context) error {
		pods, err := s.PodsOf(ctx, "low")
		if err != nil {
			return err
		}
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return cells[p.Name] == "" })
		if i < 0 {
			return fmt.Errorf("there are %d of before", len(pods))
		}
		replaced = pods[i].Name
		return nil
	})
	s.waits(replaced)
	s.Kubectl("delete", "pod", "second", "--wait=false")
	s.WaitReady(replaced)
	s.Kubectl("delete", "deployment", "low")
}

// unschedulable reports whether the virtual node is cordoned.
func (s *space) unschedulable() bool {
	s.Helper()
	node, err := world.Admin.CoreV1().Nodes().Get(s.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return node.Spec.Unschedulable
}

// The other tests' pods would be drained, too.
func TestADrainOfTheNodeWaitsForDisruptionBudgetsAndLeavesNoCell(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.Apply(deployment("kept", 2, onKip, "") + `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: kept}
spec: {minAvailable: 2, selector: {matchLabels: {app: kept}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  backoffLimit: 0
  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}
  template:
    metadata: {labels: {app: work}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: 'busybox:1.36', command: [sleep, infinity]}]
`)
	s.Apply(namespace.Sleeper("bare"))
	work := s.readyPods("work", 1)
	kept := s.readyPods("kept", 2)
	s.WaitReady("bare")
	s.Eventually("the budget counts both", func(ctx context.Context) error {
		budget, err := world.Admin.PolicyV1().PodDisruptionBudgets(s.NS).Get(ctx, "kept", metav1.GetOptions{})
		if err == nil && budget.Status.CurrentHealthy != 2 {
			err = fmt.Errorf("it counts %d", budget.Status.CurrentHealthy)
		}
		return err
	})

	s.Cleanup(func() {
		if _, errs, err := namespace.Run(world.Kubectl(context.Background(), "uncordon", harness.Node)); err != nil {
			s.Errorf("uncordon: %v: %s", err, errs)
		}
	})
	s.Kubectl("cordon", harness.Node)
	s.Apply(namespace.Sleeper("new"))
	s.waits("new")
	s.Eventually("a command runs on the cordoned node", s.ExecTrue("bare"))
	// A Kip that starts leaves the cordon of others as it is.
	if err := errors.Join(world.KillKip(t.Context()), world.StartKip(t.Context())); err != nil {
		t.Fatal(err)
	}
	s.Eventually("a command runs after a restart of Kip", s.ExecTrue("bare"))
	if !s.unschedulable() {
		t.Error("Kip has uncordoned the node")
	}

	drained := make(chan error, 1)
	drain := s.Command(t.Context(), "drain", harness.Node, "--force", "--ignore-daemonsets", "--timeout=5m")
	go func() {
		out, errs, err := namespace.Run(drain)
		if err != nil {
			err = fmt.Errorf("drain: %w\n%s%s", err, out, errs)
		}
		drained <- err
	}()
	s.WaitGone("bare")
	s.Never("the drain ends, or takes a pod that its budget keeps", func(ctx context.Context) error {
		select {
		case err := <-drained:
			return fmt.Errorf("it has ended: %v", err)
		default:
		}
		gone, err := s.gone(ctx, kept)
		if err == nil && len(gone) > 0 {
			err = fmt.Errorf("these pods are gone: %v", gone)
		}
		return err
	}, s.ExecTrue(kept[0].Name))
	s.Kubectl("patch", "pdb", "kept", "-p", `{"spec":{"minAvailable":0}}`)
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	s.Eventually("no cell is left", s.NoCells)

	s.Kubectl("uncordon", harness.Node)
	s.readyPods("kept", 2)
	s.WaitReady("new")
	// The eviction is no failure of the Job, as its policy says.
	if again := s.readyPods("work", 1); again[0].UID == work[0].UID {
		t.Error("the pod of the Job was not evicted")
	}
	s.Kubectl("delete", "deployment/kept", "job/work")
}
