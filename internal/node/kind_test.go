package node

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
)

func taintKeys(n *corev1.Node) []string {
	var keys []string
	for _, t := range n.Spec.Taints {
		keys = append(keys, t.Key)
	}
	slices.Sort(keys)
	return keys
}

func TestANodeSaysWhatItIsToSchedulersAndControllersOfClouds(t *testing.T) {
	c := newCluster()
	cfg := config(c.own, c.node)
	cfg.CapacityType, cfg.Controller = "spot", "abc"
	cfg.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoExecute}}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{
		"karpenter.sh/capacity-type": "spot", "kip.elotl.co/controller": "abc", "kubernetes.io/arch": "amd64",
		"node.kubernetes.io/exclude-from-external-load-balancers": "true",
		"kubernetes.io/role":             "agent",
		"eks.amazonaws.com/compute-type": "fargate", "kubernetes.azure.com/managed": "false",
		"topology.kubernetes.io/zone": "us-east-1a", "topology.kubernetes.io/region": "us-east-1",
	} {
		if got.Labels[label] != want {
			t.Errorf("label %s is %q, want %q", label, got.Labels[label], want)
		}
	}
	if got.Spec.ProviderID != "kip://abc/"+testNode+"/virtual" {
		t.Errorf("provider ID %q", got.Spec.ProviderID)
	}
	if keys := taintKeys(got); !slices.Equal(keys, []string{"gpu", DefaultTaintKey}) {
		t.Errorf("taints %v", keys)
	}
	cfg.AnyArch, cfg.CapacityType, cfg.Taints = true, "", nil
	if n, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if got, err = n.register(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"kubernetes.io/arch", "karpenter.sh/capacity-type"} {
		if v, has := got.Labels[label]; has {
			t.Errorf("a node of several has label %s=%s", label, v)
		}
	}
	if keys := taintKeys(got); !slices.Equal(keys, []string{DefaultTaintKey}) {
		t.Errorf("the taint that is no longer configured is there: %v", keys)
	}
}

func TestANodeThatWasThereGetsAProviderIDOnce(t *testing.T) {
	for before, want := range map[string]string{"": "kip://abc/" + testNode + "/virtual", "other://x": "other://x"} {
		c := newCluster(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: testNode, Labels: map[string]string{"type": "virtual-kubelet"}},
			Spec:       corev1.NodeSpec{ProviderID: before},
		})
		cfg := config(c.own, c.node)
		cfg.Controller = "abc"
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := n.register(t.Context()); err != nil || got.Spec.ProviderID != want {
			t.Errorf("provider ID %q becomes %v, %v: want %q", before, got, err, want)
		}
	}
}

func TestANodeThatIsTakenOutIsCordonedAndUncordonedWhenItComesBack(t *testing.T) {
	for name, byOthers := range map[string]bool{"by Kip": false, "by others": true} {
		c := newCluster()
		registered := func(removed bool) *corev1.Node {
			t.Helper()
			cfg := config(c.own, c.node)
			cfg.Removed = removed
			n, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			got, err := n.register(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		first := registered(false)
		if first.Spec.Unschedulable {
			t.Error("a new node is cordoned")
		}
		if byOthers {
			first.Spec.Unschedulable = true
			if _, err := c.own.CoreV1().Nodes().Update(t.Context(), first, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if got := registered(true); !got.Spec.Unschedulable || slices.Contains(taintKeys(got), RemovedTaint) == byOthers {
				t.Errorf("cordoned %s: a node that is taken out is %+v", name, got.Spec)
			}
		}
		if got := registered(false); got.Spec.Unschedulable != byOthers || slices.Contains(taintKeys(got), RemovedTaint) {
			t.Errorf("cordoned %s: a node that is back is %+v", name, got.Spec)
		}
	}
	c := newCluster()
	cfg := config(c.own, c.node)
	cfg.Removed = true
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := n.register(t.Context()); err != nil || !got.Spec.Unschedulable {
		t.Errorf("a node that is made again while it is taken out is %v, %v", got, err)
	}
}

func TestAShortageIsATaintForAsLongAsItLasts(t *testing.T) {
	c := newCluster()
	n, stop := start(t, config(c.own, c.node))
	defer stop()
	waitReady(t, n)
	for _, step := range []struct {
		why  string
		want bool
	}{{"no spot", true}, {"no spot at all", true}, {"", false}} {
		n.Short(step.why)
		eventually(t, "the taint follows the shortage", func() bool { return slices.Contains(taintKeys(c.get(t)), ShortTaint) == step.want })
	}
}

func TestANodeOfAnotherKipIsForeign(t *testing.T) {
	virtual := func(owner string) *corev1.Node {
		labels := map[string]string{"type": "virtual-kubelet", apiv1.LabelController: owner}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, Labels: labels}}
	}
	for _, c := range []struct {
		node       *corev1.Node
		controller string
		foreign    bool
	}{
		{virtual("abc"), "abc", false},
		{virtual("other"), "abc", true},
		{virtual("other"), "", false},
		{virtual(""), "abc", false},
		{&corev1.Node{}, "", true},
	} {
		if err := Foreign(c.node, c.controller); errors.Is(err, ErrForeignNode) != c.foreign {
			t.Errorf("node %v of Kip %q: %v, want foreign: %t", c.node.Labels, c.controller, err, c.foreign)
		}
	}
}
