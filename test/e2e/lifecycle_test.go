//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
)

func TestInitContainersAndSidecarsRunInOrder(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(bare("a", `  restartPolicy: Never
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - {name: first, image: 'busybox:1.36', command: [sh, -c, 'echo first >> /v/order'], volumeMounts: [{name: v, mountPath: /v}]}
  - name: sidecar
    image: busybox:1.36
    restartPolicy: Always
    command: [sh, -c, 'echo sidecar >> /v/order; touch /v/up; trap "exit 0" TERM; while :; do sleep 0.1; done']
    startupProbe: {exec: {command: [test, -e, /v/up]}, periodSeconds: 1}
    volumeMounts: [{name: v, mountPath: /v}]
  - {name: second, image: 'busybox:1.36', command: [sh, -c, 'echo second >> /v/order'], volumeMounts: [{name: v, mountPath: /v}]}
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'echo main >> /v/order; cat /v/order'], volumeMounts: [{name: v, mountPath: /v}]}
`))
	s.WaitPod("a", "has Succeeded, though its sidecar never ends by itself", namespace.HasPhase(corev1.PodSucceeded))
	if log := s.Kubectl("logs", "a", "-c", "main"); log != "first\nsidecar\nsecond\nmain\n" {
		t.Fatalf("the containers ran in the order %q", log)
	}
}

func TestProbesDecideReadinessAndRestarts(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'touch /started /live; mkdir /www; echo ok > /www/index.html; httpd -p 8080 -h /www; trap "exit 0" TERM; while :; do sleep 0.1; done']
    startupProbe: {exec: {command: [test, -e, /started]}, periodSeconds: 1}
    readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1}
    livenessProbe: {exec: {command: [test, -e, /live]}, periodSeconds: 1, failureThreshold: 1}
  - name: web
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 5, failureThreshold: 10}
`))
	s.WaitPod("a", "has started, and is not ready", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 2 && *p.Status.ContainerStatuses[0].Started && !p.Status.ContainerStatuses[0].Ready &&
			p.Status.ContainerStatuses[1].Ready
	})
	s.Kubectl("exec", "a", "-c", "main", "--", "touch", "/ready")
	before := s.WaitReady("a")
	s.Kubectl("exec", "a", "-c", "main", "--", "rm", "/live")
	after := s.WaitPod("a", "was restarted in place", func(p *corev1.Pod) bool {
		c := p.Status.ContainerStatuses[0]
		return c.RestartCount == 1 && c.State.Running != nil
	})
	if after.UID != before.UID || after.Status.PodIP != before.Status.PodIP || after.Status.ContainerStatuses[1].RestartCount != 0 {
		t.Fatalf("more than the one container was restarted: %s", namespace.States(after))
	}
	if last := after.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil {
		t.Fatal("the last state is not kept")
	}
}

func TestACrashingContainerBacksOff(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(bare("a", `  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'echo run; exit 1']}
`))
	s.WaitPod("a", "is in CrashLoopBackOff", func(p *corev1.Pod) bool {
		if len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		c := p.Status.ContainerStatuses[0]
		return c.RestartCount >= 1 && c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
	})
	// It is asked again: the run before is another when the container has been started
	// once more, and the kubelet removes the one before that.
	s.Eventually("the log of the run before is there", func(ctx context.Context) error {
		if log, code, errs := s.Attempt(ctx, "logs", "a", "--previous"); code != 0 || log != "run\n" {
			return fmt.Errorf("it is %q (exit %d: %s)", log, code, errs)
		}
		return nil
	})
	s.cellOf("a") // one cell, still
}

func TestHooksAndTheGracePeriodAreHonoured(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ear := s.ear()
	s.Apply(strings.Replace(bare("a", fmt.Sprintf(`  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "echo term | nc -w 1 %[1]s 9000; exit 0" TERM; while :; do sleep 0.1; done']
    lifecycle:
      postStart: {exec: {command: [sh, -c, 'echo postStart | nc -w 1 %[1]s 9000']}}
      preStop: {exec: {command: [sh, -c, 'for word in preStop one two three; do echo $word | nc -w 1 %[1]s 9000; sleep 1; done']}}
`, ear)), "terminationGracePeriodSeconds: 2", "terminationGracePeriodSeconds: 20", 1))
	s.WaitReady("a")
	s.Kubectl("delete", "pod", "a")
	s.hears("postStart\npreStop\none\ntwo\nthree\nterm\n")
	s.waitGone("a")
}

// ear is a pod that hears what others tell at its port 9000, also when they are gone.
// It returns its address.
func (s *space) ear() string {
	s.Helper()
	s.Apply(bare("ear", `  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'while :; do nc -l -p 9000; done']}
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

func TestAPodThatIgnoresItsEndIsKilledAfterItsGracePeriod(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ear := s.ear()
	s.Apply(strings.Replace(bare("a", fmt.Sprintf(`  containers:
  - name: main
    image: busybox:1.36
    command:
    - sh
    - -c
    - |
      trap "told=yes" TERM
      while [ -z "$told" ]; do sleep 0.1; done
      for word in told one two three; do
        echo $word | nc -w 1 %[1]s 9000
        sleep 1
      done
      while :; do sleep 0.1; done
`, ear)), "terminationGracePeriodSeconds: 2", "terminationGracePeriodSeconds: 20", 1))
	s.WaitReady("a")
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.waitGone("a")
	s.hears("told\none\ntwo\nthree\n")
}

func TestActiveDeadlineSecondsEndsThePod(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(bare("a", `  restartPolicy: Never
  activeDeadlineSeconds: 3
  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, infinity]}
`))
	pod := s.WaitPod("a", "has Failed", namespace.HasPhase(corev1.PodFailed))
	if pod.Status.Reason != "DeadlineExceeded" {
		t.Fatalf("reason %q, want DeadlineExceeded", pod.Status.Reason)
	}
	s.Eventually("the cell is gone", s.NoCells)
}

func TestAContainerThatUsesTooMuchMemoryIsOOMKilled(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(bare("a", `  restartPolicy: Never
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

func TestAnEphemeralContainerJoinsARunningPod(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(sleeper("a"))
	s.WaitReady("a")
	// The expression does not match the command that it is in.
	s.Kubectl("debug", "a", "--image=busybox:1.36", "--target=main", "--container=look", "--", "sh", "-c",
		"ps | grep -c '[e]cho started'; sleep 3600")
	s.WaitPod("a", "has its ephemeral container", func(p *corev1.Pod) bool {
		return len(p.Status.EphemeralContainerStatuses) == 1 && p.Status.EphemeralContainerStatuses[0].State.Running != nil
	})
	s.Eventually("it sees the other container's processes", func(context.Context) error {
		if log := strings.TrimSpace(s.Kubectl("logs", "a", "-c", "look")); log != "1" {
			return fmt.Errorf("it counts %q", log)
		}
		return nil
	})
}

func TestReadinessGatesAndConditionsOfOthersAreKept(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(bare("a", `  readinessGates: [{conditionType: example.com/open}]
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

func TestSecurityContextIsApplied(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(bare("a", `  securityContext: {runAsUser: 1234, runAsGroup: 2345, fsGroup: 3456, sysctls: [{name: net.ipv4.ip_local_port_range, value: "20000 30000"}], seccompProfile: {type: RuntimeDefault}}
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    volumeMounts: [{name: v, mountPath: /v}]
    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`))
	s.WaitReady("a")
	for script, want := range map[string]string{
		"id -u; id -g; id -G":                        "1234\n2345\n2345 3456",
		"stat -c %g /v":                              "3456",
		"cat /proc/sys/net/ipv4/ip_local_port_range": "20000\t30000",
		"grep CapEff /proc/self/status":              "CapEff:\t0000000000000000",
		"grep NoNewPrivs /proc/self/status":          "NoNewPrivs:\t1",
		"grep Seccomp: /proc/self/status":            "Seccomp:\t2",
		"touch /x 2>&1 || true":                      "touch: /x: Read-only file system",
	} {
		if got := strings.TrimSpace(s.Kubectl("exec", "a", "--", "sh", "-c", script)); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}
