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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Two pods are cut off for two minutes: one may be silent for 90 seconds, as is
// the default, the other for five minutes.
func TestACutNetworkIsOutlivedOrEndsTheCell(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(sleeper("short"))
	s.apply(strings.Replace(webServer("long", "", "well"), "{name: long}", `{name: long, labels: {app: web}, annotations: {pod.elotl.co/healthcheck-healthy-timeout: "300"}}`, 1))
	s.apply(`apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`)
	short, long := s.waitReady("short"), s.waitReady("long")
	a, b := s.machine("short"), s.machine("long")
	s.eventually("pod long is an endpoint", s.endpoints(1))
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
		s.within(lossPatience, "pod "+name+" is not ready", func(ctx context.Context) error {
			pod, err := s.pod(ctx, name)
			if err == nil && !silent(pod) {
				err = fmt.Errorf("its conditions are %+v", pod.Status.Conditions)
			}
			return err
		})
		s.waitEvent(name, "CellSilent", "")
	}
	t.Logf("not ready after %s", time.Since(began).Round(time.Second))
	s.eventually("pod long is no endpoint", s.endpoints(0))

	after, _ := s.waitMoved(short, a, ended)
	t.Logf("on another cell after %s", time.Since(began).Round(time.Second))
	s.waitEvent("short", "CellLost", "it is cut off, while its instance runs")
	wasLost(s, after)
	s.waitCellGone(a)

	s.within(lossPatience, "two minutes have passed", func(ctx context.Context) error {
		if out := 2*time.Minute - time.Since(began); out > 0 {
			return fmt.Errorf("%s are left", out)
		}
		return nil
	})
	if pod, err := s.pod(t.Context(), "long"); err != nil || isReady(pod) || pod.Status.Phase != corev1.PodRunning {
		t.Errorf("after two minutes pod long is %+v, %v", pod.Status, err)
	}
	mend()
	unmoved(s, firstContainer(long).ContainerID, "long")
	s.eventually("pod long is an endpoint again", s.endpoints(1))
	if now := s.machine("long"); now.cell.Name != b.cell.Name {
		t.Errorf("pod long moved from cell %s to %s", b.cell.Name, now.cell.Name)
	}
}

// endpoints checks how many ready endpoints Service web has.
func (s *space) endpoints(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := world.Admin.DiscoveryV1().EndpointSlices(s.ns).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
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
	t.Parallel()
	s := newSpace(t)
	s.apply(deployment("free", `      terminationGracePeriodSeconds: 20
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'trap "echo told; sleep 1; echo saved; exit 0" TERM; echo started; while :; do sleep 0.1; done']
        lifecycle: {preStop: {exec: {command: [sh, -c, 'echo preStop > /proc/1/fd/1']}}}
`))
	s.apply(deployment("held", sleeps))
	s.apply(`apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: held}
spec: {minAvailable: 1, selector: {matchLabels: {app: held}}}
`)
	s.apply(sleeper("bare"))
	free, held, alone := s.waitPodOf("free", ""), s.waitPodOf("held", ""), s.waitReady("bare")
	s.eventually("the disruption budget counts its pod", func(ctx context.Context) error {
		budget, err := world.Admin.PolicyV1().PodDisruptionBudgets(s.ns).Get(ctx, "held", metav1.GetOptions{})
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
	follow := s.command(t.Context(), "logs", "--follow", free.Name)
	go func() {
		out, errs, err := run(follow)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, errs)
		}
		logs <- output{out, err}
	}()

	at := time.Now().Add(45 * time.Second)
	for _, m := range []machine{freeOn, heldOn, aloneOn} {
		m.interrupt(s, at)
	}

	s.waitEvent(free.Name, "Interrupted", freeOn.cell.Status.InstanceID)
	s.waitEvent(free.Name, "Evicted", "")
	s.waitEvent(held.Name, "EvictionBlocked", "")
	s.waitEvent("bare", "InterruptedPodStays", "")
	next := s.waitPodOf("free", free.Name)
	if on := s.machine(next.Name); on.cell.Status.InstanceID == freeOn.cell.Status.InstanceID {
		t.Error("the replacement is on the machine that is taken")
	}
	for _, c := range next.Status.Conditions {
		if c.Type == corev1.PodReady && !c.LastTransitionTime.Time.Before(at) {
			t.Errorf("the replacement was ready at %s, the machine was taken at %s", c.LastTransitionTime, at)
		}
	}
	if got := <-logs; got.err != nil || got.text != "started\npreStop\ntold\nsaved\n" {
		t.Errorf("the log of the pod that moved is %q, %v", got.text, got.err)
	}
	s.waitCellGone(freeOn)
	if end := <-freeEnded; !end.Before(at) {
		t.Errorf("the machine of the pod that moved ended at %s, not before it was taken at %s", end, at)
	}
	// Until the end of the notice the others run.
	for pod, ended := range map[string]<-chan time.Time{held.Name: heldEnded, "bare": aloneEnded} {
		select {
		case end := <-ended:
			if end.Before(at) {
				t.Errorf("the machine of pod %s ended at %s, before it was taken at %s", pod, end, at)
			}
			t.Fatalf("the test was too slow to see pod %s run", pod)
		default:
			s.eventually("exec in pod "+pod, s.execTrue(pod))
		}
	}
	s.waitMoved(held, heldOn, heldEnded)
	s.waitMoved(alone, aloneOn, aloneEnded)
	s.waitCellGone(heldOn)
	s.waitCellGone(aloneOn)
}
