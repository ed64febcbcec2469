package pods

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	corev1 "k8s.io/api/core/v1"
)

func TestADeletedPodThatNoKubeletHasIsDeletedByKip(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.must("a")
	h.put(pod("a", deletedAt(h.clock.Now().Add(30*time.Second))))
	h.must("a")
	h.want("released", h.cells.released, "uid-a unbound")
	if h.exists("a") {
		t.Fatal("the pod is still there")
	}
}

func TestADeletedPodOnABoundCellIsLeftToItsKubeletUntilItIsOverdue(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
	h.put(pod("a", running, deletedAt(h.clock.Now().Add(30*time.Second))))
	again := h.must("a")
	h.want("released", h.cells.released)
	if !h.exists("a") {
		t.Fatal("Kip deleted a pod that a kubelet is ending")
	}
	h.clock.Step(again)
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=false")
	if !h.exists("a") {
		t.Fatal("the pod was deleted before its cell was confirmed gone")
	}
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Terminating })
	h.must("a")
	if !h.exists("a") {
		t.Fatal("the pod was deleted before its cell was confirmed gone")
	}
	h.cells.gone("uid-a")
	h.must("a")
	if h.exists("a") {
		t.Fatal("the pod is still there after its cell has gone")
	}
}

func TestADeletedPodThatHasEndedIsLeftToItsKubeletToo(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
	h.put(pod("a", deletedAt(h.clock.Now()), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	h.must("a")
	h.want("released", h.cells.released)
	if !h.exists("a") {
		t.Fatal("Kip deleted a pod that its kubelet is about to delete")
	}
}

// Its kubelet does not hear of it, and would remove what people want to look at.
func TestADeletedPodWhoseCellIsKeptIsDeletedByKip(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase, c.KeepUntil = apiv1.Draining, h.clock.Now().Add(time.Hour) })
	h.put(pod("a", deletedAt(h.clock.Now()), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
	h.must("a")
	h.want("released", h.cells.released)
	if h.exists("a") {
		t.Fatal("the pod is still there")
	}
}

func TestTheGracePeriodIsCountedByOneClock(t *testing.T) {
	for _, ahead := range []time.Duration{-2 * time.Minute, 0, 2 * time.Minute} {
		h := newHarness(t)
		h.put(pod("a", running))
		h.must("a")
		h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
		// The API server's clock is ahead of Kip's, or behind it.
		deleted := func(grace int64) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				deletedAt(h.clock.Now().Add(ahead + time.Duration(grace)*time.Second))(p)
				p.DeletionGracePeriodSeconds = &grace
			}
		}
		h.put(pod("a", running, deleted(100)))
		if again := h.must("a"); again != 100*time.Second+overdue {
			t.Errorf("a clock that is %s ahead: it is looked at again in %s", ahead, again)
		}
		h.clock.Step(40 * time.Second)
		if again := h.must("a"); again != 60*time.Second+overdue {
			t.Errorf("a clock that is %s ahead: 40 s later it is looked at again in %s", ahead, again)
		}
		h.put(pod("a", running, deleted(10))) // and again, with less grace
		if again := h.must("a"); again != 10*time.Second+overdue {
			t.Errorf("a clock that is %s ahead: of a shorter grace period it has left %s", ahead, again-overdue)
		}
		h.clock.Step(10*time.Second + overdue)
		h.want("released", h.cells.released)
		h.must("a")
		h.want("released", h.cells.released, "uid-a ended=false")
	}
}
