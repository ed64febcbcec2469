//go:build e2e

package eks

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods that Karpenter looks at: no virtual node takes the first, and no ordinary node the second, which is for Karpenter's machines.
const pending = `apiVersion: v1
kind: Pod
metadata: {name: on-no-node-of-kip}
spec:
  nodeSelector: {type: virtual-kubelet, kubernetes.io/hostname: none}
  containers: [{name: main, image: 'busybox:1.36'}]
---
apiVersion: v1
kind: Pod
metadata: {name: on-karpenter}
spec:
  nodeSelector: {karpenter.sh/nodepool: bench}
  containers: [{name: main, image: 'busybox:1.36'}]
`

// mayBurst is a pod as a profile of mode burst has it.
const mayBurst = `apiVersion: v1
kind: Pod
metadata: {name: may-burst}
spec:
  terminationGracePeriodSeconds: 0
  enableServiceLinks: false
  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists, effect: NoSchedule}]
  affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: [
    {key: type, operator: NotIn, values: [virtual-kubelet]}]}}]}}
  containers: [{name: main, image: 'busybox:1.36', command: [sleep, infinity]}]
`

// burst has a pod run on Kip's nodes while no ordinary node takes it.
func (s *space) burst() {
	s.Helper()
	s.Kubectl("cordon", "node-1")
	s.Apply(mayBurst)
	if on := s.WaitReady("may-burst").Spec.NodeName; on == "node-1" {
		s.Errorf("the pod that may burst is on %s", on)
	}
	s.Kubectl("uncordon", "node-1")
	s.Kubectl("delete", "pod", "may-burst")
}

// karpenterBuysForOthers checks that Karpenter has bought no node for what runs on Kip, also for want of an ordinary node, nor for
// what waits for Kip, and that it buys one for another pod.
func (s *space) karpenterBuysForOthers() {
	s.Helper()
	s.burst()
	if claims := s.Kubectl("get", "nodeclaims", "-o", "name"); claims != "" {
		s.Errorf("Karpenter bought nodes for Kip's pods:\n%s", claims)
	}
	s.Apply(pending)
	s.Eventually("Karpenter says that it has no node for a pod of Kip's", func(ctx context.Context) error {
		events, err := world.Admin.CoreV1().Events(s.NS).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=on-no-node-of-kip"})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if from := e.Source.Component + e.ReportingController; strings.HasPrefix(from, "karpenter") && e.Reason == "FailedScheduling" {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("the pod's Events are %q", seen)
	})
	s.Eventually("Karpenter has bought a node for the other", func(ctx context.Context) error {
		out, code, errs := s.Attempt(ctx, "get", "nodeclaims", "-o", "name")
		if code != 0 || strings.Count(out, "\n") != 1 {
			return fmt.Errorf("the NodeClaims are %q: exit %d: %s", out, code, errs)
		}
		pod, err := world.Admin.CoreV1().Pods(s.NS).Get(ctx, "on-karpenter", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("pod on-karpenter is on no node: %v", pod.Status.Conditions)
		}
		node, err := world.Admin.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node.Labels["type"] == "virtual-kubelet" || node.Labels[corev1.LabelInstanceTypeStable] != "one-pod" {
			return fmt.Errorf("pod on-karpenter is on node %s with labels %v", node.Name, node.Labels)
		}
		return nil
	})
	// No kubelet of its node ends it.
	s.Kubectl("delete", "pod", "on-karpenter", "on-no-node-of-kip", "--force", "--grace-period=0")
}
