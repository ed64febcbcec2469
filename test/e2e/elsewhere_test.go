//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/test/tier"
)

// inJob is a Job of that pod, with annotations of its pods and further lines of its spec.
func inJob(pod, annotations, more string) string {
	meta, spec, _ := strings.Cut(pod, "spec:\n")
	_, name, _ := strings.Cut(meta, "name: ")
	name, _, _ = strings.Cut(name, "}")
	return fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: %[1]s}
spec:
  backoffLimit: 0
%[3]s
  template:
    metadata: {labels: {app: %[1]s}, annotations: {%[4]s}}
    spec:%[2]s
      restartPolicy: Never
`, name, strings.ReplaceAll("\n"+strings.TrimRight(spec, "\n"), "\n", "\n    "), more, annotations)
}

// onNeverStarted is a podFailurePolicy about pods that had no running cell.
func onNeverStarted(action string) string {
	return "  podFailurePolicy: {rules: [{action: " + action + `, onPodConditions: [{type: NeverStarted, status: "True"}]}]}`
}

// shortage waits until a node says what it lacks.
func (s *space) shortage(name, want string) {
	s.Helper()
	s.Eventually("node "+name+" says "+want, func(ctx context.Context) error {
		n, err := world.Admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type != node.ShortageCondition {
				continue
			}
			if is := string(c.Status) + " " + c.Reason; is != want {
				return fmt.Errorf("it says %s: %s", is, c.Message)
			}
			return nil
		}
		return errors.New("it has no such condition")
	})
}

func TestJobsWhoseNodeHasNoCapacityGoElsewhereOrFailAsTold(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const name = "kip-jobs"
	s := inTwoZones(t, name, "127.75.0.0/16")
	a, b := s.nodes["a"], s.nodes["b"]
	s.shortage(a, "False CapacityAvailable")
	s.machines.fail(cloud.Scope{Zone: "a"}, time.Hour)
	onA := "  nodeSelector: {KIP, topology.kubernetes.io/zone: a}\n"
	const soon = "pod.elotl.co/max-pending: 10s"
	s.Apply(inJob(beside(name, "told", onA), soon, onNeverStarted("FailJob")) + "---\n" +
		inJob(beside(name, "counted", onA), soon, "") + "---\n" +
		inJob(beside(name, "elsewhere", likes("a")), soon, onNeverStarted("Ignore")))
	for job, reason := range map[string]string{"told": batchv1.JobReasonPodFailurePolicy, "counted": batchv1.JobReasonBackoffLimitExceeded} {
		s.Eventually("Job "+job+" has failed", func(ctx context.Context) error {
			j, err := world.Admin.BatchV1().Jobs(s.NS).Get(ctx, job, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range j.Status.Conditions {
				if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue && c.Reason == reason {
					return nil
				}
			}
			return fmt.Errorf("its conditions are %+v", j.Status.Conditions)
		})
		pods, err := s.PodsOf(t.Context(), job)
		if err != nil || len(pods) != 1 {
			t.Fatalf("Job %s has the pods %v, %v", job, pods, err)
		}
		if is := pods[0].Status; is.Phase != corev1.PodFailed || is.Reason != "NoCapacity" || !strings.Contains(is.Message, "no capacity now") {
			t.Errorf("the pod of Job %s is %s: %s: %s", job, is.Phase, is.Reason, is.Message)
		}
	}
	s.shortage(a, "True NothingAvailable")
	s.shortage(b, "False CapacityAvailable")
	s.tainted(a, true)
	s.Eventually("the Job that goes elsewhere has a pod on the other node", func(ctx context.Context) error {
		pods, err := s.PodsOf(ctx, "elsewhere")
		if err != nil {
			return err
		}
		for _, p := range pods {
			if p.Spec.NodeName == b && p.Status.Phase == corev1.PodRunning && s.machines.of(&p) == "nano in b" {
				return nil
			}
		}
		return fmt.Errorf("its pods are %+v", pods)
	})
	// What can be nowhere else is on no node now, and is told why.
	s.Apply(strings.Replace(beside(name, "pinned", "  nodeSelector: {KIP, topology.kubernetes.io/zone: a, type: virtual-kubelet}\n"),
		"tolerations: [", "tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}, ", 1))
	s.Within(servedAgain, "the pod that is pinned to the node is told", func(ctx context.Context) error {
		said, code, stderr := s.Attempt(ctx, "get", "events", "--field-selector=involvedObject.name=pinned,reason=NoCapacity",
			"-o=jsonpath={.items[*].message}")
		if code != 0 || !strings.Contains(said, "node "+a+" takes no new pods for now: the cloud has no capacity now for any of") {
			return fmt.Errorf("it was told %q, %s", said, stderr)
		}
		return nil
	})
	s.Kubectl("delete", "job", "told", "counted", "elsewhere")
	s.Kubectl("delete", "pod", "pinned")
}

func TestAPodMovesBackToSpotWhenThereIsSomeAgain(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const name = "kip-back"
	machines := kipBeside(t, name, "127.76.0.0/16", spotToo("a"), map[string]any{"launchTypes": []string{config.Spot, config.OnDemand}})
	s := newSpace(t)
	machines.fail(cloud.Scope{Spot: new(true)}, outage)
	const back = "pod.elotl.co/move-back: 1m"
	with := func(manifest string) string {
		return strings.Replace(manifest, "metadata: {labels: {", "metadata: {annotations: {"+back+"}, labels: {", 1)
	}
	here := "  nodeSelector: {KIP}\n"
	// Of a node of several launch types, and of a list that is the pod's own.
	const list = `pod.elotl.co/instance-requirements: '[{"launchType": "spot", "matchExpressions": [{"key": "node.kubernetes.io/instance-type",
      "operator": "In", "values": ["nano"]}]}, {"launchType": "on-demand"}]'`
	s.Apply(strings.Replace(with(inDeployment(beside(name, "listed", here))), back, back+", "+list, 1) + "---\n" +
		with(inDeployment(beside(name, "moves", here))) + "---\n" + with(inDeployment(beside(name, "kept", here))) + "---\n" +
		inJob(beside(name, "works", here), back, "") + `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: kept}
spec: {minAvailable: 1, selector: {matchLabels: {app: kept}}}
`)
	was := map[string]*corev1.Pod{}
	for _, app := range []string{"moves", "listed", "kept", "works"} {
		was[app] = s.besidePodOf(app, "")
		if got := machines.of(was[app]); got != "nano in a" {
			t.Fatalf("of %s a machine %q was launched", app, got)
		}
	}
	if out := s.tells(machines.kipSocket, "why", was["listed"].Name); !strings.Contains(out, "this is rank 2 of 2") ||
		!strings.Contains(out, "rank 1: no capacity now as spot") {
		t.Errorf("kipctl why says\n%s", out)
	}
	machines.fail(cloud.Scope{}, 0)
	for _, app := range []string{"moves", "listed"} {
		if got := machines.of(s.besidePodOf(app, was[app].UID)); got != "nano in a as spot" {
			t.Errorf("the pod of %s moved to a machine %q", app, got)
		}
	}
	told := func(pod, reason, words string) {
		t.Helper()
		s.Within(servedAgain, "pod "+pod+" has the Event "+reason, func(ctx context.Context) error {
			said, code, stderr := s.Attempt(ctx, "get", "events", "--field-selector=involvedObject.name="+pod+",reason="+reason,
				"-o=jsonpath={.items[*].message}")
			if code != 0 || !strings.Contains(said, words) {
				return fmt.Errorf("it was told %q, %s", said, stderr)
			}
			return nil
		})
	}
	told(was["moves"].Name, "Evicted", "nano in a, choice 2 of 2: the cloud has capacity for a better one")
	told(was["listed"].Name, "Evicted", "choice 2 of 2: the cloud has capacity for a better one")
	told(was["kept"].Name, "EvictionBlocked", "choice 2 of 2")
	told(was["works"].Name, "MoveBackStays", "it is a Job's")
	for _, app := range []string{"kept", "works"} {
		if p, err := s.Pod(t.Context(), was[app].Name); err != nil || p.UID != was[app].UID || p.DeletionTimestamp != nil {
			t.Errorf("the pod of %s is %+v, %v", app, p, err)
		}
	}
	s.Kubectl("delete", "deployment", "moves", "listed", "kept")
	s.Kubectl("delete", "job", "works")
}
