package pods

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhilePausedNoCellIsRequestedAndDeletedPodsGo(t *testing.T) {
	h := newHarness(t)
	waiting := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "waiting", UID: "w"}}
	ended := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ended", UID: "e"},
		Status:     corev1.PodStatus{Phase: corev1.PodSucceeded},
	}
	h.put(waiting)
	h.put(ended)
	h.cells.set("e", func(c *cells.Cell) { c.ID, c.Phase, c.Pod = "cell-e", apiv1.Bound, apiv1.Ref(ended) })
	h.c.Pause("it is being cleaned up")
	if n := h.c.core.loop.queue.Len(); n != 2 {
		t.Errorf("%d pods were woken, want both, to learn of it", n)
	}
	h.must("waiting")
	h.must("waiting")
	if why := h.c.Waiting("w"); why != "it is being cleaned up" {
		t.Errorf("the pod waits since %q", why)
	}
	h.want("events", h.events, "Warning Paused")
	h.want("requests", h.cells.requests)
	h.must("ended")
	h.want("released", h.cells.released, "e ended=true")

	waiting = waiting.DeepCopy()
	waiting.DeletionTimestamp = &metav1.Time{Time: h.clock.Now().Add(30 * time.Second)}
	h.put(waiting)
	h.must("waiting")
	if h.exists("waiting") {
		t.Error("a deleted pod without a cell is still there")
	}
}
