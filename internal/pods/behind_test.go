package pods

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPodThatAnUnknownCellMayRunIsNeitherGivenAnotherNorFailedNorDeleted(t *testing.T) {
	ran := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://1"}}
	}
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	for _, tc := range []struct {
		name   string
		unsure bool
		pod    *corev1.Pod
		wait   time.Duration
		events []string
	}{
		{"new", false, pod("new"), behindRetry, []string{"Warning StoreBehind"}},
		{"ran", false, pod("ran", ran, never), behindRetry, []string{"Warning StoreBehind"}},
		{"before the first list", true, pod("early", ran, never), staleRetry, []string{"Warning StoreBehind"}},
		{"deleted", false, pod("deleted", ran, deletedAt(time.Unix(0, 0))), behindRetry, []string{"Warning CellUnknown"}},
		{"deleted before the first list", true, pod("deleted-early", deletedAt(time.Unix(0, 0))), staleRetry, nil},
	} {
		h := newHarness(t)
		h.cells.behind, h.cells.unsure = "it is older", tc.unsure
		h.put(tc.pod)
		h.must(tc.pod.Name)
		if got := h.must(tc.pod.Name); got != tc.wait {
			t.Errorf("%s: it is looked at again after %s, want %s", tc.name, got, tc.wait)
		}
		h.want(tc.name, h.events, tc.events...)
		h.want(tc.name, h.cells.requests)
		if ran := tc.pod.Status.Phase == corev1.PodRunning; slices.Contains(h.cells.asked, !ran) {
			t.Errorf("%s: it has run: %t, and it is asked of %v", tc.name, ran, h.cells.asked)
		}
		now, err := h.client.CoreV1().Pods("ns").Get(t.Context(), tc.pod.Name, metav1.GetOptions{})
		if err != nil || now.Status.Phase == corev1.PodFailed {
			t.Errorf("%s: the pod is %v, %v", tc.name, now, err)
		}
		if why := h.c.Waiting(tc.pod.UID); (why != "") != (tc.events != nil) {
			t.Errorf("%s: it waits for %q", tc.name, why)
		}
	}
	// A pod that never ran needs no list.
	h := newHarness(t)
	h.cells.behind, h.cells.unsure = "not listed yet", true
	h.put(pod("fresh"))
	h.must("fresh")
	h.want("requests", h.cells.requests, "uid-fresh#1")
}

// Who has taken over a store that was behind ends what may run a pod. Until that is gone
// nobody may replace the pod.
func TestAPodThatMayRunElsewhereFailsWhenThatIsGone(t *testing.T) {
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		tries  int
		reason string
	}{
		"it ran":           {pod("ran", running, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }), 0, events.CellLost},
		"it had its cells": {pod("tried"), 1, events.CellsNotReady},
	} {
		h := newHarness(t)
		h.c.cfg.MaxAttempts = tc.tries
		h.put(tc.pod)
		h.c.note(apiv1.Ref(tc.pod), func(w *waiting) { w.failures = tc.tries })
		phase := func() corev1.PodPhase {
			now, err := h.client.CoreV1().Pods("ns").Get(t.Context(), tc.pod.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return now.Status.Phase
		}
		h.cells.other = "instance i-1 may run it"
		if wait := h.must(tc.pod.Name); wait != behindRetry || phase() == corev1.PodFailed {
			t.Errorf("%s: while another may run it, it is looked at again after %s, and is %s", name, wait, phase())
		}
		h.want(name, h.events, "Warning CellUnknown")
		h.cells.other = ""
		if h.must(tc.pod.Name); phase() != corev1.PodFailed {
			t.Errorf("%s: when the other is gone it is %s", name, phase())
		}
		h.want(name, h.events[1:], "Warning "+tc.reason)
	}
}

// A process that no longer leads does not know the cells that its successor has made.
func TestAKipThatDoesNotLeadFailsEvictsAndDeletesNoPod(t *testing.T) {
	h := newHarness(t)
	deposed := errors.New("another leads")
	h.c.cfg.Leadership = leads(func(context.Context) error { return deposed })
	ran := pod("ran", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://1"}}
	})
	gone := pod("gone", deletedAt(time.Unix(0, 0)))
	for _, p := range []*corev1.Pod{ran, gone} {
		h.put(p)
		if _, err := h.reconcile(p.Name); !errors.Is(err, deposed) {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	now, err := h.client.CoreV1().Pods("ns").Get(t.Context(), "ran", metav1.GetOptions{})
	if err != nil || now.Status.Phase != corev1.PodRunning || !h.exists("gone") || len(h.events) > 0 {
		t.Errorf("the pod is %v, %v; the deleted one is there: %t; said %v", now, err, h.exists("gone"), h.events)
	}
	h = newHarness(t)
	evictions := short(h, owned)
	h.clock.Step(time.Second)
	h.c.cfg.Leadership = leads(func(context.Context) error { return deposed })
	if _, err := h.reconcile("a"); !errors.Is(err, deposed) || *evictions > 0 {
		t.Errorf("a pod of a node without capacity: %v, %d evictions", err, *evictions)
	}
}
