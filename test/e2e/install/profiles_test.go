//go:build e2e

package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// by is a pod whose label chooses a profile, with more of its spec.
func by(name, label, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {runs: %s}}
spec:
  terminationGracePeriodSeconds: 0
  enableServiceLinks: false
%s  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
`, name, label, more)
}

// profiles are what the operator configures: of pods of one namespace, by a label.
func profiles(ns string) []any {
	one := func(name string, more map[string]any) any {
		p := map[string]any{"name": name, "podSelector": map[string]any{"matchLabels": map[string]string{"runs": name}}}
		for key, value := range more {
			p[key] = value
		}
		return p
	}
	return []any{
		one("never", map[string]any{"namespaces": []string{ns}, "mode": "never"}),
		one("burst", map[string]any{"namespaces": []string{ns}, "ownerKinds": []string{"ReplicaSet"}, "mode": "burst"}),
		one("only", map[string]any{"namespaces": []string{ns}, "mode": "only", "minMemory": "1Mi",
			"annotations": map[string]string{"pod.elotl.co/max-price-per-hour": "0.5"}}),
		one("granted", map[string]any{"mode": "only", "annotations": map[string]string{"pod.elotl.co/allow-metadata": "true"},
			"namespaceSelector": map[string]any{"matchLabels": map[string]string{"kubernetes.io/metadata.name": ns}}}),
		one("not-granted", map[string]any{"namespaces": []string{ns}, "mode": "only",
			"annotations": map[string]string{"pod.elotl.co/volume-size": "200Gi"}}),
	}
}

// madeAs is a pod as the API server makes it, without making it.
func madeAs(ctx context.Context, s *namespace.Space, pod *corev1.Pod) (*corev1.Pod, error) {
	pod.GenerateName = "asked-"
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "busybox:1.36"}}
	return world.Admin.CoreV1().Pods(s.NS).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// One test: the chart is upgraded once for all of it.
func TestProfilesSendPodsToKipWhoseManifestsNobodyTouches(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	before := kip(s, nil)
	folder, _ := chart(t)
	values := withValues(t, func(v map[string]any) {
		config := v["config"].(map[string]any)
		config["admission"] = map[string]any{"profiles": profiles(s.NS)}
		cells := config["cells"].(map[string]any)
		cells["grants"] = map[string]any{"namespaces": []any{map[string]any{"namespace": s.NS, "allowMetadata": true}}}
	})
	if out, err := helm(t, "upgrade", release, folder, "--values", values, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("upgrade: %v\n%s", err, out)
	}
	kip(s, before)
	defer installed(s)
	s.Kubectl("annotate", "namespace", s.NS, "allow.kip.elotl.co/allow-metadata=true")
	s.Eventually("the API server asks Kip about pods of profiles", func(ctx context.Context) error {
		pod, err := madeAs(ctx, s, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"runs": "never"}}})
		if err == nil && pod.Annotations["pod.elotl.co/profile"] != "never" {
			err = errors.New("it does not")
		}
		return err
	})

	onlyOnKip(s)
	neverOnKip(s)
	defaultsNeedGrants(s)
	ordinaryNodesFirst(s)
	log(s)
}

func onlyOnKip(s *namespace.Space) {
	s.Helper()
	const requests = "  tolerations: [{key: mine, operator: Exists}]\n"
	s.Apply(strings.Replace(by("only", "only", requests), "command:", "resources: {requests: {memory: 16Mi}}\n    command:", 1))
	pod := s.WaitReady("only")
	if pod.Spec.NodeName != harness.Node || pod.Annotations["pod.elotl.co/max-price-per-hour"] != "0.5" {
		s.Errorf("the pod is on %s, with annotations %v", pod.Spec.NodeName, pod.Annotations)
	}
	s.Eventually("exec", s.ExecTrue("only"))
	if out := s.Kubectl("exec", "-n", kipNamespace, kipPod, "--", "/kipctl", "why", s.NS+"/only"); !strings.Contains(out, "Profile:") ||
		!strings.Contains(out, "only") {
		s.Errorf("kipctl why says nothing of the profile:\n%s", out)
	}
	// It requests less than the profile is for.
	pod, err := madeAs(s.Context(), s, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"runs": "only"}}})
	if err != nil || len(pod.Annotations) > 0 || len(pod.Spec.NodeSelector) > 0 {
		s.Errorf("a pod that requests nothing is made with %v and selects %v: %v", pod.Annotations, pod.Spec.NodeSelector, err)
	}
}

// A pod that tolerates Kip's taint is kept from Kip's node, the only one that is not cordoned.
func neverOnKip(s *namespace.Space) {
	s.Helper()
	s.Kubectl("cordon", "node-1", "node-2")
	const waits = "  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]\n"
	s.Apply(by("never", "never", waits))
	s.Apply(by("control", "nothing", waits))
	if on := s.WaitReady("control").Spec.NodeName; on != harness.Node {
		s.Errorf("a pod of no profile is on %s", on)
	}
	s.Never("the pod that never runs on Kip is on its node", func(ctx context.Context) error {
		pod, err := s.Pod(ctx, "never")
		if err == nil && pod.Spec.NodeName != "" {
			err = fmt.Errorf("it is on %s", pod.Spec.NodeName)
		}
		return err
	}, s.ExecTrue("control"))
	s.Kubectl("uncordon", "node-1", "node-2")
	if on := s.WaitReady("never").Spec.NodeName; on == harness.Node {
		s.Errorf("the pod that never runs on Kip is on %s", on)
	}
	s.Kubectl("delete", "pod", "never", "control")
}

func defaultsNeedGrants(s *namespace.Space) {
	s.Helper()
	s.Apply(by("granted", "granted", ""))
	if pod := s.WaitReady("granted"); pod.Annotations["pod.elotl.co/allow-metadata"] != "true" {
		s.Errorf("the pod has annotations %v", pod.Annotations)
	}
	_, err := madeAs(s.Context(), s, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"runs": "not-granted"}}})
	if err == nil || !strings.Contains(err.Error(), "pod.elotl.co/volume-size") {
		s.Errorf("a default that the policy does not grant: %v", err)
	}
	s.Kubectl("annotate", "namespace", s.NS, "allow.kip.elotl.co/volume-size=200Gi")
	s.Eventually("the policy grants it", func(ctx context.Context) error {
		_, err := madeAs(ctx, s, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"runs": "not-granted"}}})
		return err
	})
	s.Apply(by("not-granted", "not-granted", ""))
	s.WaitEvent("not-granted", "NotGranted", "pod.elotl.co/volume-size")
	s.Kubectl("delete", "pod", "granted", "not-granted")
}

const burst = `apiVersion: apps/v1
kind: Deployment
metadata: {name: burst}
spec:
  replicas: 6
  selector: {matchLabels: {app: burst}}
  template:
    metadata: {labels: {app: burst, runs: burst}}
    spec:
      terminationGracePeriodSeconds: 0
      enableServiceLinks: false
      containers:
      - name: main
        image: busybox:1.36
        command: [sleep, infinity]
        resources: {requests: {cpu: %dm}}
`

// Two of the pods fit on each ordinary node.
func ordinaryNodesFirst(s *namespace.Space) {
	s.Helper()
	virtual, err := world.Admin.CoreV1().Nodes().Get(s.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if !slices.ContainsFunc(virtual.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == node.BurstTaint && t.Effect == corev1.TaintEffectPreferNoSchedule
	}) {
		s.Errorf("the virtual node has the taints %v", virtual.Spec.Taints)
	}
	s.Apply(fmt.Sprintf(burst, leastFree(s)*45/100))
	onKip := func(ctx context.Context, replicas int) (virtual []corev1.Pod, err error) {
		pods, err := world.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "app=burst"})
		if err != nil {
			return nil, err
		}
		for _, p := range pods.Items {
			if !namespace.IsReady(&p) {
				return nil, fmt.Errorf("pod %s is %s", p.Name, namespace.States(&p))
			}
			if p.Spec.NodeName == harness.Node {
				virtual = append(virtual, p)
			}
			cost := p.Annotations["controller.kubernetes.io/pod-deletion-cost"]
			if (cost == "-1") != (p.Spec.NodeName == harness.Node) || cost != "-1" && cost != "" {
				s.Errorf("pod %s is on %s, and costs %q", p.Name, p.Spec.NodeName, cost)
			}
		}
		if n := len(pods.Items); n != replicas {
			return nil, fmt.Errorf("there are %d pods", n)
		}
		return virtual, nil
	}
	s.Eventually("the ordinary nodes are full, and the others are on Kip's", func(ctx context.Context) error {
		virtual, err := onKip(ctx, 6)
		if err == nil && len(virtual) != 2 {
			err = fmt.Errorf("%d pods are on Kip's node, want 2", len(virtual))
		}
		return err
	})
	s.Kubectl("scale", "deployment/burst", "--replicas=3")
	s.Eventually("it has scaled in, and those on Kip's node went first", func(ctx context.Context) error {
		virtual, err := onKip(ctx, 3)
		if err == nil && len(virtual) > 0 {
			s.Fatalf("%d pods are left on Kip's node, and others went", len(virtual))
		}
		return err
	})
	s.Kubectl("delete", "deployment/burst")
}

// leastFree is how many thousandths of a CPU are left on the ordinary node that has less.
func leastFree(s *namespace.Space) (milli int64) {
	s.Helper()
	for i, name := range []string{"node-1", "node-2"} {
		n, err := world.Admin.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
		if err != nil {
			s.Fatal(err)
		}
		pods, err := world.Admin.CoreV1().Pods("").List(s.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
		if err != nil {
			s.Fatal(err)
		}
		free := n.Status.Allocatable.Cpu().MilliValue()
		for _, p := range pods.Items {
			for _, c := range p.Spec.Containers {
				free -= c.Resources.Requests.Cpu().MilliValue()
			}
		}
		if i == 0 || free < milli {
			milli = free
		}
	}
	return milli
}
