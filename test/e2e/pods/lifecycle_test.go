//go:build e2e

package pods

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

func TestHooksAndTheGracePeriodAreHonoured(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ear := s.ear()
	s.Apply(strings.Replace(namespace.Bare("a", fmt.Sprintf(`  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "echo term | nc -w 10 %[1]s 9000; exit 0" TERM; while :; do sleep 0.1; done']
    lifecycle:
      postStart: {exec: {command: [sh, -c, 'echo postStart | nc -w 10 %[1]s 9000']}}
      preStop: {exec: {command: [sh, -c, 'for word in preStop one two three; do echo $word | nc -w 10 %[1]s 9000; sleep 1; done']}}
`, ear)), "terminationGracePeriodSeconds: 2", "terminationGracePeriodSeconds: 20", 1))
	s.WaitReady("a")
	s.Kubectl("delete", "pod", "a")
	s.hears("postStart\npreStop\none\ntwo\nthree\nterm\n")
	s.WaitGone("a")
}

// ear makes a pod that logs what others tell at its port 9000, and keeps that when they are gone. It returns the pod's address.
// The pod listens all the time, since a pod that is told to end tells that only once.
func (s *space) ear() string {
	s.Helper()
	s.Apply(namespace.Bare("ear", `  containers:
  - {name: main, image: 'busybox:1.36', command: [nc, -ll, -p, '9000', -e, sh, -c, 'cat >&2']}
`))
	return s.WaitReady("ear").Status.PodIP
}

// hears waits until the ear has heard exactly this.
func (s *space) hears(words string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%q is heard", words), func(context.Context) error {
		if log := s.Kubectl("logs", "ear"); log != words {
			return fmt.Errorf("heard %q", log)
		}
		return nil
	})
}

func TestReadinessGatesAndConditionsOfOthersAreKept(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  readinessGates: [{conditionType: example.com/open}]
  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, infinity]}
`))
	s.WaitPod("a", "runs and is not ready", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && p.Status.ContainerStatuses[0].Ready && !namespace.IsReady(p)
	})
	s.Eventually("the gate is opened", func(ctx context.Context) error {
		p, err := s.Pod(ctx, "a")
		if err != nil {
			return err
		}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: "example.com/open", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now()),
		})
		_, err = world.Admin.CoreV1().Pods(s.NS).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	})
	s.WaitReady("a")
}

// Upstream's conformance tests ask for no seccomp profile, and whether runc can load
// one depends on how it was built.
func TestTheSeccompProfileOfAPodIsApplied(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  securityContext: {seccompProfile: {type: RuntimeDefault}}
  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, infinity]}
`))
	s.WaitReady("a")
	if got := s.Kubectl("exec", "a", "--", "grep", "Seccomp:", "/proc/self/status"); got != "Seccomp:\t2\n" {
		t.Errorf("the status of a process in the pod has %q, want Seccomp 2", got)
	}
}

// The threat model names it: no spec of upstream has a pod that takes its machine's memory.
func TestAContainerThatUsesTooMuchMemoryIsOOMKilled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  restartPolicy: Never
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'x=0123456789abcdef; while :; do x=$x$x; done']
    resources: {limits: {memory: 32Mi}}
`))
	pod := s.WaitPod("a", "has Failed", namespace.HasPhase(corev1.PodFailed))
	if got := pod.Status.ContainerStatuses[0].State.Terminated; got.Reason != "OOMKilled" || got.ExitCode != 137 {
		t.Fatalf("terminated as %s, exit %d; want OOMKilled, 137", got.Reason, got.ExitCode)
	}
}
