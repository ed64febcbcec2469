//go:build e2e

// Here are tests that wait for long and do little, in a file whose name sorts
// late: of tests that are parallel, those that come last start first, so that the
// others run meanwhile.

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// Two pods are cut off for two minutes: one may be silent for 90 seconds, as is
// the default, the other for a quarter of an hour.
func TestACutNetworkIsOutlivedOrEndsTheCell(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.company()
	s.Apply(namespace.Sleeper("short"))
	s.Apply(strings.Replace(namespace.WebServer("long", "", "well"), "{name: long}",
		`{name: long, labels: {app: web}, annotations: {pod.elotl.co/healthcheck-healthy-timeout: "900"}}`, 1))
	s.Apply(`apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`)
	short, long := s.WaitReady("short"), s.WaitReady("long")
	a, b := s.machine("short"), s.machine("long")
	s.Eventually("pod long is an endpoint", s.endpoints(1))
	ended := a.ended(s)

	began := time.Now()
	a.cut(s)
	mend := b.cut(s)
	for _, name := range []string{"short", "long"} {
		silent := func(pod *corev1.Pod) bool {
			return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && c.Reason == "CellSilent"
			})
		}
		s.Within(namespace.LossPatience, "pod "+name+" is not ready", func(ctx context.Context) error {
			pod, err := s.Pod(ctx, name)
			if err == nil && !silent(pod) {
				err = fmt.Errorf("its conditions are %+v", pod.Status.Conditions)
			}
			return err
		})
		s.WaitEvent(name, "CellSilent", "")
	}
	t.Logf("not ready after %s", time.Since(began).Round(time.Second))
	s.Eventually("pod long is no endpoint", s.endpoints(0))

	after, _ := s.waitMoved(short, a, ended)
	t.Logf("on another cell after %s", time.Since(began).Round(time.Second))
	s.WaitEvent("short", "CellLost", "it is cut off, while its instance runs")
	wasLost(s, after)
	s.waitCellGone(a)

	s.Within(namespace.LossPatience, "two minutes have passed", func(ctx context.Context) error {
		if out := 2*time.Minute - time.Since(began); out > 0 {
			return fmt.Errorf("%s are left", out)
		}
		return nil
	})
	if pod, err := s.Pod(t.Context(), "long"); err != nil || namespace.IsReady(pod) || pod.Status.Phase != corev1.PodRunning {
		t.Errorf("after two minutes pod long is %+v, %v", pod.Status, err)
	}
	mend()
	unmoved(s, firstContainer(long).ContainerID, "long")
	s.Eventually("pod long is an endpoint again", s.endpoints(1))
	if now := s.machine("long"); now.cell.Name != b.cell.Name {
		t.Errorf("pod long moved from cell %s to %s", b.cell.Name, now.cell.Name)
	}
}

// company has two pods run that are heard, beside the two of a test that fall silent. When more
// than 55 % of the cells are silent, Kip takes it for a fault of its own, and ends none: what runs
// beside a test must not decide whether its own are lost.
func (s *space) company() {
	s.Helper()
	for _, name := range []string{"heard-1", "heard-2"} {
		s.Apply(namespace.Sleeper(name))
	}
	for _, name := range []string{"heard-1", "heard-2"} {
		s.WaitReady(name)
	}
}

// Three pods may be silent for half a minute. The kubelet of one hangs, and the agent of
// another, which is the machine's first process: the cell API that the kubelet renews
// its lease by is the agent's. What hangs may go on at any time, so each pod gets
// another cell only when its machine is no more. The third is well, and may be silent for longer.
func TestAPodWhoseKubeletOrAgentHangsGoesOnOnAnotherCell(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	limits := map[string]string{"kubelet": "30", "agent": "30", "well": "900"}
	s.company()
	before, on := map[string]*corev1.Pod{}, map[string]machine{}
	names := []string{"kubelet", "agent", "well"}
	for _, name := range names {
		s.Apply(strings.Replace(namespace.Sleeper(name), "{name: "+name+"}",
			fmt.Sprintf("{name: %s, annotations: {pod.elotl.co/healthcheck-healthy-timeout: %q}}", name, limits[name]), 1))
	}
	for _, name := range names {
		before[name], on[name] = s.WaitReady(name), s.machine(name)
	}
	parts, err := on["kubelet"].children()
	if err != nil || parts["kubelet"] == 0 {
		t.Fatalf("the machine's processes are %v, %v", parts, err)
	}
	why := map[string]string{"kubelet": "its agent answers, its kubelet does not", "agent": "it is cut off, while its instance runs"}
	ended := map[string]<-chan time.Time{}
	for name, pid := range map[string]int{"kubelet": parts["kubelet"], "agent": on["agent"].pid} {
		ended[name] = on[name].ended(s)
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	for name, words := range why {
		after, _ := s.waitMoved(before[name], on[name], ended[name])
		s.WaitEvent(name, "CellSilent", "")
		s.WaitEvent(name, "CellLost", words)
		wasLost(s, after)
		s.waitCellGone(on[name])
		s.Eventually("exec in pod "+name, s.ExecTrue(name))
	}
	s.allUnmoved(map[string]*corev1.Pod{"well": before["well"]})
	if now := s.machine("well"); now.cell.Name != on["well"].cell.Name {
		t.Errorf("pod well moved from cell %s to %s", on["well"].cell.Name, now.cell.Name)
	}
}

// endpoints checks how many ready endpoints Service web has.
func (s *space) endpoints(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := world.Admin.DiscoveryV1().EndpointSlices(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		if err != nil {
			return err
		}
		n := 0
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					n++
				}
			}
		}
		if n != want {
			return fmt.Errorf("%d endpoints are ready, want %d", n, want)
		}
		return nil
	}
}

// Three machines are taken back: of a pod whose controller makes another, of one
// that may not be evicted, and of one that nobody would make again.
func TestAnInterruptionMovesWhatCanMoveWithinItsNotice(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(deployment("free", `      terminationGracePeriodSeconds: 20
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'trap "echo told; sleep 1; echo saved; exit 0" TERM; echo started; while :; do sleep 0.1; done']
        lifecycle: {preStop: {exec: {command: [sh, -c, 'echo preStop > /proc/1/fd/1']}}}
`))
	s.Apply(deployment("held", namespace.Sleeps))
	s.Apply(`apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: held}
spec: {minAvailable: 1, selector: {matchLabels: {app: held}}}
`)
	s.Apply(namespace.Sleeper("bare"))
	free, held, alone := s.WaitPodOf("free", ""), s.WaitPodOf("held", ""), s.WaitReady("bare")
	s.Eventually("the disruption budget counts its pod", func(ctx context.Context) error {
		budget, err := world.Admin.PolicyV1().PodDisruptionBudgets(s.NS).Get(ctx, "held", metav1.GetOptions{})
		if err == nil && budget.Status.CurrentHealthy != 1 {
			err = fmt.Errorf("it counts %d", budget.Status.CurrentHealthy)
		}
		return err
	})
	freeOn, heldOn, aloneOn := s.machine(free.Name), s.machine(held.Name), s.machine("bare")
	freeEnded, heldEnded, aloneEnded := freeOn.ended(s), heldOn.ended(s), aloneOn.ended(s)
	type output struct {
		text string
		err  error
	}
	logs := make(chan output, 1)
	follow := s.Command(t.Context(), "logs", "--follow", free.Name)
	go func() {
		out, errs, err := namespace.Run(follow)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, errs)
		}
		logs <- output{out, err}
	}()

	// So far away that the end of the notice has no part in what follows.
	at := time.Now().Add(time.Hour)
	for _, m := range []machine{freeOn, heldOn, aloneOn} {
		m.interrupt(s, at)
	}

	s.WaitEvent(free.Name, "Interrupted", freeOn.cell.Status.InstanceID)
	s.WaitEvent(free.Name, "Evicted", "")
	s.WaitEvent(held.Name, "EvictionBlocked", "")
	s.WaitEvent("bare", "InterruptedPodStays", "")
	next := s.WaitPodOf("free", free.Name)
	if on := s.machine(next.Name); on.cell.Status.InstanceID == freeOn.cell.Status.InstanceID {
		t.Error("the replacement is on the machine that is taken")
	}
	if got := <-logs; got.err != nil || got.text != "started\npreStop\ntold\nsaved\n" {
		t.Errorf("the log of the pod that moved is %q, %v", got.text, got.err)
	}
	s.waitCellGone(freeOn)
	<-freeEnded
	// Until the end of the notice the others run.
	for pod, ended := range map[string]<-chan time.Time{held.Name: heldEnded, "bare": aloneEnded} {
		s.Never("the machine of pod "+pod+" has ended", func(context.Context) error {
			select {
			case end := <-ended:
				return fmt.Errorf("at %s, and it was to be taken at %s", end, at)
			default:
				return nil
			}
		}, s.ExecTrue(pod))
	}
	// Now it is over.
	for _, m := range []machine{heldOn, aloneOn} {
		m.interrupt(s, time.Now())
	}
	s.waitMoved(held, heldOn, heldEnded)
	s.waitMoved(alone, aloneOn, aloneEnded)
	s.waitCellGone(heldOn)
	s.waitCellGone(aloneOn)
}
