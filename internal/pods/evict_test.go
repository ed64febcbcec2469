package pods

import (
	"errors"
	"testing"
	"time"

	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func TestWhatBecomesOfAnEviction(t *testing.T) {
	broken := errors.New("no answer")
	for name, tc := range map[string]struct {
		answer  error
		evicted bool
		again   time.Duration
		want    []string // Events, after two tries
		err     error
	}{
		"it is evicted": {evicted: true, want: []string{"Normal Evicted", "Normal Evicted"}},
		"it is gone":    {answer: apierrors.NewNotFound(corev1.Resource("pods"), "a")},
		"it is another": {answer: apierrors.NewConflict(corev1.Resource("pods"), "a", nil)},
		"a budget forbids it": {
			answer: apierrors.NewTooManyRequests("a disruption budget", 0),
			again:  leaveRetry,
			want:   []string{"Warning EvictionBlocked"},
		},
		"nobody answers": {answer: broken, err: broken},
	} {
		h := newHarness(t)
		p := pod("a")
		h.put(p)
		h.client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.answer })
		e := eviction{
			cause:   noCapacity,
			done:    events.NewUnservablePodEvicted("kip-0", time.Minute, "kip-1"),
			blocked: func(why error) events.Event { return events.NewUnservablePodBlocked("kip-0", why) },
			retry:   leaveRetry,
		}
		for range 2 {
			evicted, again, err := h.c.shared.evicting.evict(t.Context(), p, e)
			if evicted != tc.evicted || again != tc.again || !errors.Is(err, tc.err) {
				t.Errorf("%s: evicted %t, again after %s, %v", name, evicted, again, err)
			}
		}
		h.want(name, h.events, tc.want...)
		h.events = nil
		if allowed, _, _ := h.c.shared.evicting.allowed(t.Context(), p, e); allowed != tc.evicted || len(h.events) > 0 {
			t.Errorf("%s: a dry run says %t, and the pod's owner hears %q", name, allowed, h.events)
		}
		if (h.c.shared.evicting.last(p, noCapacity) == evictionBlocked) != (tc.want != nil && !tc.evicted) {
			t.Errorf("%s: the last notice is %d", name, h.c.shared.evicting.last(p, noCapacity))
		}
	}
}

func TestWhyAPodStaysIsToldOnceForEachReasonToEvictIt(t *testing.T) {
	lonely := func(m *market) { m.rank = nil } // a pod with one choice
	never := func(p *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, "karpenter.sh/do-not-disrupt", "true")
	}
	for name, tc := range map[string]struct {
		change func(*market)
		pod    func(*corev1.Pod)
		want   []string
	}{
		"a budget keeps it on its old cell, and it has no other choice": {
			change: lonely, want: []string{"Normal EvictionBlocked", "Normal MoveBackStays"},
		},
		"a budget forbids both": {want: []string{"Normal EvictionBlocked", "Normal EvictionBlocked"}},
		"it asks to stay":       {pod: never, want: []string{"Normal AgedPodStays", "Normal MoveBackStays"}},
	} {
		m := newMarket(t, func(string) bool { return true })
		m.restarted(func(c *Config) { c.MaxAge = 24 * time.Hour })
		m.has["first"] = true
		p := pod("a", running, ownedBy("ReplicaSet", "web"), movesBack)
		if tc.pod != nil {
			tc.pod(p)
		}
		m.runs(p, "second")
		if tc.change != nil {
			tc.change(m)
		}
		m.clock.Step(24 * time.Hour)
		for range 10 {
			m.must("a")
			m.clock.Step(time.Minute)
		}
		m.want(name, m.events, tc.want...)
	}
}
