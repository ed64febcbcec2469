//go:build e2e

package neighbours

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// policyHead is what policies of the descheduler have in common: the selector of nodes, and whether a pod has to fit elsewhere.
const policyHead = `apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
%s
profiles:
- name: e2e
  pluginConfig:
  - {name: DefaultEvictor, args: {nodeFit: %t}}
`

// usual is of a policy that spreads pods, packing one that empties nodes, and wayBack one that moves pods to nodes that they prefer.
const (
	usual = `  - {name: RemoveDuplicates}
  - {name: RemovePodsViolatingNodeTaints}
  - {name: RemovePodsViolatingInterPodAntiAffinity}
  - name: LowNodeUtilization
    args: {thresholds: {cpu: 20, memory: 20, pods: 20}, targetThresholds: {cpu: 50, memory: 50, pods: 50}}
  - {name: RemovePodsViolatingTopologySpreadConstraint, args: {constraints: [DoNotSchedule, ScheduleAnyway]}}
  plugins:
    deschedule: {enabled: [RemovePodsViolatingNodeTaints, RemovePodsViolatingInterPodAntiAffinity]}
    balance: {enabled: [RemoveDuplicates, LowNodeUtilization, RemovePodsViolatingTopologySpreadConstraint]}
`
	packing = `  - {name: HighNodeUtilization, args: {thresholds: {cpu: 20, memory: 20, pods: 20}}}
  plugins:
    balance: {enabled: [HighNodeUtilization]}
`
	wayBack = `  - {name: RemovePodsViolatingNodeAffinity, args: {nodeAffinityType: [preferredDuringSchedulingIgnoredDuringExecution]}}
  plugins:
    deschedule: {enabled: [RemovePodsViolatingNodeAffinity]}
`
	// notKip is what docs/cluster.md tells users to set.
	notKip = `nodeSelector: type!=virtual-kubelet`
)

// deschedule runs the descheduler once, and returns which of these pods it has evicted.
func (s *space) deschedule(head string, fits bool, plugins string, pods []corev1.Pod) (evicted []string) {
	s.Helper()
	file := filepath.Join(s.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(policyHead, head, fits)+plugins), 0o600); err != nil {
		s.Fatal(err)
	}
	out, errs, err := namespace.Run(exec.CommandContext(s.Context(), world.Tool("descheduler"), "--kubeconfig="+world.Kubeconfig,
		"--policy-config-file="+file, "--descheduling-interval=0", "--secure-port=0", "--v=3"))
	if err != nil {
		s.Fatalf("descheduler (is it built? `make neighbours`): %v\n%s%s", err, out, errs)
	}
	if evicted, err = s.gone(s.Context(), pods); err != nil {
		s.Fatal(err)
	}
	if s.Failed() {
		s.Logf("the descheduler says\n%s", errs)
	}
	return evicted
}

// fills takes so much CPU of a node, in thousandths, that no pod of burst fits there.
func fills(node string, milliCPU int64) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: fills-%[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: 'busybox:1.36', command: [sleep, infinity], resources: {requests: {cpu: %[2]dm}}}]
`, node, milliCPU)
}

// burst is of pods as a profile of mode burst has them.
const burst = `      tolerations: [{key: virtual-kubelet.io/provider, operator: Exists, effect: NoSchedule}]
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: [
        {key: type, operator: NotIn, values: [virtual-kubelet]}]}}]}}
`

// room is how much CPU an ordinary node has left, in thousandths.
func (s *space) room(node string) int64 {
	s.Helper()
	n, err := world.Admin.CoreV1().Nodes().Get(s.Context(), node, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	list, err := world.Admin.CoreV1().Pods("").List(s.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		s.Fatal(err)
	}
	left := n.Status.Allocatable.Cpu().MilliValue()
	for _, p := range list.Items {
		for _, c := range p.Spec.Containers {
			left -= c.Resources.Requests.Cpu().MilliValue()
		}
	}
	return left
}

// It looks at all pods of the cluster.
func TestTheDeschedulerLeavesPodsOnKipWhereItIsToldTo(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	left := min(s.room(ordinary), s.room(other))
	for _, node := range []string{ordinary, other} {
		s.Apply(fills(node, left*7/10))
		s.WaitReady("fills-" + node)
	}
	onlyKip := func() []corev1.Pod { return s.readyPods("only", 3) }
	all := func() []corev1.Pod { return append(s.readyPods("burst", 3), onlyKip()...) }
	// What it does when nobody tells it: the same again and again.
	again := func(name, plugins string, pods func() []corev1.Pod) {
		s.Helper()
		for range 2 {
			if evicted := s.deschedule("", false, plugins, pods()); len(evicted) == 0 {
				t.Errorf("by the policy %s it has evicted nothing, so that what follows shows nothing", name)
			}
		}
	}
	s.Apply(deployment("only", 3, onKip, "        resources: {requests: {cpu: 100m}}\n"))
	again("packing", packing, onlyKip)
	s.Apply(deployment("burst", 3, burst, fmt.Sprintf("        resources: {requests: {cpu: %dm}}\n", left*6/10)))
	again("usual", usual, all)

	pods := all()
	for _, p := range pods {
		if p.Spec.NodeName != harness.Node {
			t.Fatalf("pod %s is on %s", p.Name, p.Spec.NodeName)
		}
	}
	for range namespace.Looks {
		for name, plugins := range map[string]string{"usual": usual, "packing": packing} {
			for head, fits := range map[string]bool{notKip: false, "": true} {
				if evicted := s.deschedule(head, fits, plugins, pods); len(evicted) > 0 {
					t.Errorf("with the policy %s, %q and nodeFit %t it has evicted %v", name, head, fits, evicted)
				}
			}
		}
	}
	const one = "maxNoOfPodsToEvictPerNode: 1"
	if evicted := s.deschedule(one, true, wayBack, pods); len(evicted) > 0 {
		t.Errorf("the ordinary nodes are full, and it has evicted %v", evicted)
	}

	s.Kubectl("delete", "pod", "fills-"+ordinary)
	if evicted := s.deschedule(one, true, wayBack, pods); len(evicted) != 1 {
		t.Errorf("an ordinary node has room for one, and it has evicted %v", evicted)
	}
	pods = all()
	on := 0
	for _, p := range pods {
		if p.Spec.NodeName == ordinary {
			on++
		}
	}
	if on != 1 {
		t.Errorf("%d pods are on %s, want 1", on, ordinary)
	}
	if evicted := s.deschedule(one, true, wayBack, pods); len(evicted) > 0 {
		t.Errorf("it has evicted %v when all were where they are to be", evicted)
	}
	s.Kubectl("delete", "deployment", "burst", "only")
}
