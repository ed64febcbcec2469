package pods

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// The budget of a pod that was ready until now does not know that it is not.
func TestAPodThatFallsSilentIsNotEvictedAtOnce(t *testing.T) {
	h := newHarness(t)
	tried := 0
	h.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		tried++
		return true, nil, nil
	})
	p := interrupted(h)
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	h.put(p)
	cell, _ := h.cells.ForPod(p.UID)
	h.c.CellSilent(cell, time.Time{})
	if again := h.must("a"); tried != 0 || again != evictionRetry {
		t.Fatalf("%d evictions, and another look in %s: want none before %s", tried, again, evictionRetry)
	}
	if h.must("a"); tried != 0 { // what was marked is told by the watch
		t.Fatalf("%d evictions when the pod is seen as not ready: want none before %s", tried, evictionRetry)
	}
	h.clock.Step(evictionRetry)
	h.must("a")
	if tried != 1 {
		t.Errorf("%d evictions when its budget has had time: want 1", tried)
	}
}
