//go:build e2e

package e2e

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

// asked waits until the API server asks Kip about pods: one that selects an instance type
// has the annotation in its place.
func (s *space) asked() {
	s.Helper()
	s.Eventually("the API server asks Kip about pods", func(ctx context.Context) error {
		pod, err := world.Admin.CoreV1().Pods(s.NS).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "asked-"},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"type": "virtual-kubelet", corev1.LabelInstanceTypeStable: "nano"},
				Containers:   []corev1.Container{{Name: "main", Image: "busybox:1.36"}},
			},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Annotations["pod.elotl.co/instance-type"] != "nano" {
			err = errors.New("it does not")
		}
		for _, t := range pod.Spec.Tolerations {
			if t.TolerationSeconds != nil {
				err = errors.Join(err, fmt.Errorf("the pod tolerates %s for %d seconds", t.Key, *t.TolerationSeconds))
			}
		}
		return err
	})
}

// The scheduler binds all of these: it knows nothing of instances.
func TestPodsGetTheInstanceThatTheySelect(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.asked()
	const tolerated = `  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]
`
	pod := func(name, spec string) string {
		return strings.Replace(namespace.Sleeper(name), "nodeSelector: {type: virtual-kubelet}\n", spec, 1)
	}
	affinity := func(expressions string) string {
		return `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [
    {key: type, operator: In, values: [virtual-kubelet]},
    ` + expressions + `]}]}}}
`
	}
	for name, c := range map[string]struct{ spec, want string }{
		"named": {"nodeSelector: {type: virtual-kubelet, node.kubernetes.io/instance-type: micro}\n", "micro"},
		"larger": {affinity("{key: karpenter.k8s.aws/instance-memory, operator: Gt, values: ['600']}, " +
			"{key: node.kubernetes.io/instance-type, operator: NotIn, values: [small]}"), "medium"},
	} {
		s.Apply(pod(name, c.spec+tolerated))
		s.WaitReady(name)
		if got := s.CellOf(name).Status.InstanceType; got != c.want {
			t.Errorf("pod %s is on a %s, want %s", name, got, c.want)
		}
	}
	s.Apply(pod("gpu", "nodeSelector: {type: virtual-kubelet, nvidia.com/gpu.product: Tesla-T4}\n"+tolerated))
	const says = "ruled out by pod.elotl.co/instance-requirements (nvidia.com/gpu.product: none has it)"
	s.WaitEvent("gpu", "Unplaceable", says)
	if out := why(s, "gpu"); !strings.Contains(out, says) {
		t.Errorf("kipctl why gpu does not say %q:\n%s", says, out)
	}

	s.Kubectl("label", "namespace", s.NS, "kip.elotl.co/pods=true")
	s.Eventually("pods of the namespace go to Kip", func(ctx context.Context) error {
		pod, err := world.Admin.CoreV1().Pods(s.NS).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "asked-"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Spec.NodeSelector["type"] != "virtual-kubelet" {
			err = errors.New("they do not")
		}
		return err
	})
	s.Apply(pod("anybody", "enableServiceLinks: false\n"))
	if got := s.WaitReady("anybody").Spec.NodeName; got != harness.Node {
		t.Errorf("a pod of a namespace whose pods are for Kip is on node %s", got)
	}
}

// Not parallel: Kip is away, for longer than its node is taken to be well and ten times
// as long as the API server lets pods stay on one that is not. A cloud that knows no
// machine of its name would have it deleted.
func TestPodsStayWhileKipIsAway(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.asked()
	tolerating := func(name string, seconds int) string {
		return strings.Replace(namespace.Sleeper(name), namespace.OnKip, namespace.OnKip+fmt.Sprintf(`  tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: %[1]d}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: %[1]d}
`, seconds), 1)
	}
	s.Apply(namespace.Sleeper("stays"))
	// What says itself how long it stays, Kip leaves alone. About this one it is not asked.
	s.Apply(tolerating("leaves", 10*tolerationSeconds))
	s.Apply(strings.Replace(namespace.Sleeper("bypasses"), "nodeSelector: {type: virtual-kubelet}", "nodeName: "+harness.Node, 1))
	before := map[string]*corev1.Pod{}
	for _, name := range []string{"stays", "leaves", "bypasses"} {
		before[name] = s.WaitReady(name)
	}

	node, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	killKip(t)
	for _, name := range []string{"bypasses", "leaves"} { // the last, after ten times as long
		s.WaitPod(name, "is deleted", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	}
	pod, err := s.Pod(t.Context(), "stays")
	if err != nil {
		t.Fatal(err)
	}
	if pod.UID != before["stays"].UID || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
		t.Fatalf("the pod is %s, deleted at %s", pod.Status.Phase, pod.DeletionTimestamp)
	}
	if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse
	}) {
		t.Error("the cluster has not noticed that Kip is away: the pod is ready")
	}
	s.cloudDeletes("machine")
	s.cloudDeletesNot(node)

	startKip(t)
	s.WaitReady("stays")
	unmoved(s, firstContainer(before["stays"]).ContainerID, "stays")
	s.Eventually("exec", s.ExecTrue("stays"))
	s.WaitGone("leaves")
	s.WaitGone("bypasses")
	s.Apply(namespace.Sleeper("next"))
	s.WaitReady("next")
}
