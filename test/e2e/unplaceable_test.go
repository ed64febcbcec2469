//go:build e2e

package e2e

import (
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// why runs kipctl why on a pod.
func why(s *space, pod string) string {
	s.Helper()
	out, errs, err := namespace.Run(exec.CommandContext(s.Context(), world.Tool("kipctl"), "why", pod, "-n", s.NS, "--kubeconfig",
		world.Kubeconfig, "--socket", world.Socket))
	if err != nil {
		s.Fatalf("kipctl why %s: %v\n%s%s", pod, err, out, errs)
	}
	return out
}

func TestPodsThatCannotRunSayWhy(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	container := func(resources string) string {
		return `  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, infinity]` + resources + `}
`
	}
	annotated := func(name, annotation string) string {
		return strings.Replace(namespace.Bare(name, container("")), "{name: "+name+"}", "{name: "+name+", annotations: {"+annotation+"}}", 1)
	}
	for name, tc := range map[string]struct{ manifest, reason, text string }{
		"large":   {namespace.Bare("large", container(", resources: {requests: {memory: 900Gi}}")), "Unplaceable", "too little memory"},
		"unknown": {annotated("unknown", "pod.elotl.co/instance-type: gigantic"), "InvalidAnnotation", "gigantic"},
		"kernel": {annotated("kernel", "pod.elotl.co/host-sysctls: vm.max_map_count=262144"), "AnnotationUnsupported",
			"its cells share the kernel of their host"},
		"pages": {namespace.Bare("pages", "  nodeName: "+harness.Node+"\n"+
			container(", resources: {limits: {memory: 64Mi, hugepages-2Mi: 4Mi}}")), "Unplaceable",
			"have no hugepages-2Mi (machines share the kernel of their host)"},
		"module": {annotated("module", "pod.elotl.co/host-modules: br_netfilter"), "AnnotationUnsupported", "br_netfilter"},
		"swap":   {annotated("swap", "pod.elotl.co/swap: 1Gi"), "AnnotationUnsupported", "whose swap is no pod's"},
		"typo":   {annotated("typo", "pod.elotl.co/instance-tipe: nano"), "InvalidAnnotation", "instance-type"},
	} {
		s.Apply(tc.manifest)
		s.WaitEvent(name, tc.reason, tc.text)
		if out := why(s, name); !strings.Contains(out, tc.text) {
			t.Errorf("kipctl why %s does not say %q:\n%s", name, tc.text, out)
		}
	}
	s.NoOtherCells()
	// One that does not wait for ever fails for the reason of its wait.
	s.Apply(strings.Replace(namespace.Bare("impatient", container(", resources: {requests: {memory: 900Gi}}")), "{name: impatient}",
		"{name: impatient, annotations: {pod.elotl.co/max-pending: 5s}}", 1))
	failed := s.WaitPod("impatient", "has failed", namespace.HasPhase(corev1.PodFailed))
	if failed.Status.Reason != "Unplaceable" || !strings.Contains(failed.Status.Message, "too little memory") {
		t.Errorf("it has failed as %s: %s", failed.Status.Reason, failed.Status.Message)
	}
}

func TestAnImageThatDoesNotExistIsTriedOnTheSameCell(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  containers:
  - {name: main, image: 'busybox:no-such-tag'}
`))
	s.WaitPod("a", "is in ImagePullBackOff", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ImagePullBackOff"
	})
	if cell := s.CellOf("a"); cell.Status.Attempt != 1 {
		t.Fatalf("attempt %d, want 1", cell.Status.Attempt)
	}
	if out := why(s, "a"); !strings.Contains(out, "ImagePull") {
		t.Fatalf("kipctl why does not say it:\n%s", out)
	}
}
