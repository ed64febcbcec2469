package pods

import (
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// interrupted is a running pod on a cell that the cloud takes back in two minutes.
func interrupted(h *harness) *corev1.Pod {
	p := pod("a", running, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: "job", Controller: new(true)}}
	})
	h.put(p)
	h.must("a")
	h.cells.set(p.UID, func(c *cells.Cell) { c.Phase, c.Interrupted = apiv1.Bound, h.clock.Now().Add(2*time.Minute) })
	cell, _ := h.cells.ForPod(p.UID)
	h.c.CellInterrupted(cell)
	h.events = nil
	return p
}

func TestAnEvictionThatABudgetForbidsIsTriedAgainAndToldOnce(t *testing.T) {
	h := newHarness(t)
	tried, forbidden := 0, 2
	h.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		if tried++; tried <= forbidden {
			return true, nil, apierrors.NewTooManyRequests("a disruption budget", 0)
		}
		return true, nil, nil
	})
	interrupted(h)
	for n := range forbidden {
		again := h.must("a")
		if again <= 0 || again >= 2*time.Minute {
			t.Fatalf("after refusal %d it is tried again in %s: want a time within the notice", n+1, again)
		}
		h.clock.Step(again)
	}
	h.want("events", h.events, "Warning EvictionBlocked")
	if again := h.must("a"); again != 0 || tried != forbidden+1 {
		t.Fatalf("%d evictions, and another in %s: want %d and no other", tried, again, forbidden+1)
	}
	h.want("events", h.events, "Warning EvictionBlocked", "Normal Evicted")
}

func TestAPodIsEvictedWithTheGraceThatTheNoticeLeaves(t *testing.T) {
	for left, want := range map[time.Duration]int64{2 * time.Minute: 30, 20 * time.Second: 15, 3 * time.Second: 1} {
		h := newHarness(t)
		var got []int64
		h.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			e, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
			if !ok {
				return false, nil, nil
			}
			if p := e.DeleteOptions.Preconditions; p == nil || p.UID == nil || *p.UID != "uid-a" {
				t.Errorf("the eviction is of %+v: want this pod only", p)
			}
			got = append(got, *e.DeleteOptions.GracePeriodSeconds)
			return true, nil, nil
		})
		interrupted(h)
		h.clock.Step(2*time.Minute - left)
		h.must("a")
		if !slices.Equal(got, []int64{want}) {
			t.Errorf("with %s left the pod was given %d s: want %d", left, got, want)
		}
	}
}
