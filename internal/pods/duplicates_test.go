package pods

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
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
		{"before the first list", true, pod("early", ran, never), staleRetry, []string{"Warning InstancesNotListed"}},
		{"deleted", false, pod("deleted", ran, deletedAt(time.Unix(0, 0))), behindRetry, []string{"Warning StoreBehind"}},
		{"deleted before the first list", true, pod("deleted-early", deletedAt(time.Unix(0, 0))), staleRetry,
			[]string{"Warning InstancesNotListed"}},
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
		if slices.Contains(h.cells.asked, true) {
			t.Errorf("%s: it is asked of a pod without an earlier cell", tc.name)
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

// TestOnlyAPodThatItsNodesFirstListLackedAndThatNeverRanArrived: any other may have been given to a
// cell by a Kip before this one.
func TestOnlyAPodThatItsNodesFirstListLackedAndThatNeverRanArrived(t *testing.T) {
	started := func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{} }
	for _, tc := range []struct {
		name  string
		pod   *corev1.Pod
		first bool // the first list had it
		later func(p *corev1.Pod)
		want  bool
	}{
		{"it came later", pod("a"), false, nil, true},
		{"the first list had it", pod("a"), true, nil, false},
		{"a kubelet had it", pod("a", started), false, nil, false},
		{"it ran already", pod("a", running), false, nil, false},
		{"it came later, and ran since", pod("a"), false, running, false},
	} {
		h := newHarness(t)
		h.put(tc.pod)
		h.c.ends.watching.added(tc.pod, tc.first)
		if tc.later != nil {
			now := tc.pod.DeepCopy()
			tc.later(now)
			h.put(now)
		}
		h.must("a")
		if !slices.Equal(h.cells.noEarlierCell, []bool{tc.want}) {
			t.Errorf("%s: the requests say that it has no earlier cell: %v, want %t", tc.name, h.cells.noEarlierCell, tc.want)
		}
		delete(h.cells.cells, tc.pod.UID)
		deleted := tc.pod.DeepCopy()
		deletedAt(time.Unix(0, 0))(deleted)
		if tc.later != nil {
			tc.later(deleted)
		}
		h.put(deleted)
		h.must("a")
		if !slices.Equal(h.cells.asked, []bool{tc.want}) {
			t.Errorf("%s: when it is deleted, EndDuplicates hears that it has no earlier cell: %v, want %t", tc.name, h.cells.asked, tc.want)
		}
	}
}

// withoutWatchList is an API server that lists and watches by two requests.
type withoutWatchList struct{ *cache.ListWatch }

func (withoutWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// An informer says which pods were in its first list.
func TestTheInformerSaysWhichPodsCameLater(t *testing.T) {
	h := newHarness(t)
	later := watch.NewFake()
	h.informer = cache.NewSharedIndexInformer(withoutWatchList{&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Pod{*pod("before")}}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return later, nil },
	}}, &corev1.Pod{}, 0, nil)
	cfg := h.cfg
	cfg.Pods = listed{h.informer, h}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.informer.RunWithContext(ctx) })
	defer running.Wait()
	defer cancel()
	later.Add(pod("later"))
	came := map[types.UID]bool{}
	for range 2 {
		name, _ := c.core.loop.queue.Get()
		c.core.loop.queue.Done(name)
		c.core.registry.mu.Lock()
		for uid, p := range c.core.history.of {
			came[uid] = p.cameLater
		}
		c.core.registry.mu.Unlock()
	}
	if want := map[types.UID]bool{"uid-later": true}; !maps.Equal(came, want) {
		t.Errorf("these came later: %v, want %v", came, want)
	}
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
		h.restarted(func(c *Config) { c.MaxAttempts = tc.tries })
		h.put(tc.pod)
		h.c.core.history.note(apiv1.Ref(tc.pod), func(p *past) { p.failures = tc.tries })
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
	h.c.core.api.leadership = leads(func(context.Context) error { return deposed })
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
	h.c.core.api.leadership = leads(func(context.Context) error { return deposed })
	if _, err := h.reconcile("a"); !errors.Is(err, deposed) || *evictions > 0 {
		t.Errorf("a pod of a node without capacity: %v, %d evictions", err, *evictions)
	}
}
