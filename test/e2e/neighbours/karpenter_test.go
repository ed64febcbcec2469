//go:build e2e

package neighbours

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// fillsKarpenter has Karpenter buy a node with room for the pod that may burst beside it.
const fillsKarpenter = `apiVersion: v1
kind: Pod
metadata: {name: buys}
spec:
  nodeSelector: {karpenter.sh/nodepool: bench}
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: 'busybox:1.36', resources: {requests: {cpu: 100m}}}]
`

// consolidates is of a NodePool whose nodes Karpenter removes when their pods fit elsewhere.
const consolidates = `{"spec":{"disruption":{"consolidationPolicy":"WhenEmptyOrUnderutilized","consolidateAfter":"0s","budgets":[{"nodes":"100%"}]}}}`

// claims are Karpenter's machines.
func (s *space) claims(ctx context.Context) ([]string, error) {
	out, code, errs := s.Attempt(ctx, "get", "nodeclaims", "-o", "jsonpath={range .items[*]}{.metadata.name} {.metadata.deletionTimestamp}{\"\\n\"}{end}")
	if code != 0 {
		return nil, errors.New(errs)
	}
	return strings.Split(strings.TrimSpace(out), "\n"), nil
}

// isAlone checks that Karpenter has not touched Kip's node.
func (s *space) isAlone(before *corev1.Node) {
	s.Helper()
	n, err := world.Admin.CoreV1().Nodes().Get(s.Context(), before.Name, metav1.GetOptions{})
	if err != nil || n.UID != before.UID || n.DeletionTimestamp != nil || n.Spec.Unschedulable {
		s.Fatalf("Kip's node was %s and is %+v, %v", before.UID, n, err)
	}
	for _, t := range n.Spec.Taints {
		if strings.HasPrefix(t.Key, "karpenter.sh/") {
			s.Errorf("Kip's node has the taint %s", t.ToString())
		}
	}
}

// Not parallel: it starts Kip with other settings, and ordinary nodes are cordoned.
func TestKarpenterConsolidatesNoNodeOntoKips(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	namespace.Reconfigure(t, world, func(provider map[string]any) {
		provider["admission"] = map[string]any{"profiles": []any{map[string]any{"name": "burst", "namespaces": []string{s.NS}, "mode": "burst"}}}
	})
	var kip *corev1.Node
	s.Eventually("Kip's node says that it is for bursts", func(ctx context.Context) (err error) {
		if kip, err = world.Admin.CoreV1().Nodes().Get(ctx, harness.Node, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, t := range kip.Spec.Taints {
			if t.Key == node.BurstTaint {
				return nil
			}
		}
		return fmt.Errorf("its taints are %v", kip.Spec.Taints)
	})
	for _, node := range []string{ordinary, other} {
		s.Kubectl("cordon", node)
		t.Cleanup(func() {
			if out, errs, err := namespace.Run(world.Kubectl(context.Background(), "uncordon", node)); err != nil {
				t.Errorf("uncordon %s: %v\n%s%s", node, err, out, errs)
			}
		})
	}
	s.StartKarpenter()
	s.Apply(fillsKarpenter)
	bought := s.WaitPod("buys", "has a node of Karpenter's", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }).Spec.NodeName
	s.Apply(deployment("burst", 1, burst, "        resources: {requests: {cpu: 200m}}\n"))
	var first corev1.Pod
	s.Eventually("the pod that may burst is on the node of Karpenter's", func(ctx context.Context) error {
		pods, err := s.PodsOf(ctx, "burst")
		if err != nil || len(pods) != 1 || pods[0].Spec.NodeName != bought {
			return fmt.Errorf("its pods are %+v, %w", pods, err)
		}
		first = pods[0]
		return nil
	})
	s.Kubectl("patch", "nodepool", "bench", "--type=merge", "-p", consolidates)
	s.Kubectl("delete", "pod", "buys", "--force", "--grace-period=0")

	// Kip has room for the pod, and Karpenter sees none.
	s.Within(3*time.Minute, "Karpenter says that it cannot remove its node", func(ctx context.Context) error {
		about := metav1.ListOptions{FieldSelector: "reason=Unconsolidatable,involvedObject.name=" + bought}
		events, err := world.Admin.CoreV1().Events("").List(ctx, about)
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if strings.HasPrefix(e.Message, "Can't re") { // remove, or replace
				return nil
			}
			seen = append(seen, e.Message)
		}
		return fmt.Errorf("it says %q", seen)
	})
	claims, err := s.claims(t.Context())
	if err != nil || len(claims) != 1 || strings.Contains(claims[0], "T") {
		t.Errorf("Karpenter's machines are %q, %v", claims, err)
	}
	if p, err := s.Pod(t.Context(), first.Name); err != nil || p.UID != first.UID || p.DeletionTimestamp != nil {
		t.Errorf("the pod on it is %+v, %v", p, err)
	}
	s.isAlone(kip)

	// Else that shows nothing: with room on an ordinary node it removes its own. It looks again when a pod is bound.
	s.Kubectl("uncordon", ordinary)
	s.Apply(strings.ReplaceAll(fillsKarpenter, "karpenter.sh/nodepool: bench", "kubernetes.io/hostname: "+ordinary))
	s.Within(4*time.Minute, "Karpenter has removed its node, and the pod is on the ordinary one", func(ctx context.Context) error {
		pods, err := world.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "app=burst"})
		if err != nil {
			return err
		}
		var on []string
		for _, p := range pods.Items {
			if on = append(on, p.Spec.NodeName); p.DeletionTimestamp != nil && p.Spec.NodeName == bought {
				s.Kubectl("delete", "pod", p.Name, "--force", "--grace-period=0") // no kubelet of that node ends it
			}
		}
		left, err := s.claims(ctx)
		if err != nil {
			return err
		}
		if len(on) != 1 || on[0] != ordinary || len(left) != 1 || left[0] != "" {
			return fmt.Errorf("the pods are on %v, and Karpenter's machines are %q", on, left)
		}
		return nil
	})
	s.isAlone(kip)
	s.Kubectl("delete", "deployment", "burst")
	s.Kubectl("delete", "pod", "buys")
}
