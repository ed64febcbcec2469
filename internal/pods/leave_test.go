package pods

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// short is a pod of a spot node that has had nothing for it for as long as is waited,
// less a second.
func short(h *harness, change ...func(*corev1.Pod)) (evictions *int) {
	evictions = new(int)
	h.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		*evictions++
		return true, nil, nil
	})
	h.c.cfg.Elsewhere = func(context.Context, *corev1.Pod) []string { return []string{"full", "free"} }
	h.place = func(p *corev1.Pod) ([]cells.Offer, error) {
		if p.Spec.NodeName == "free" {
			return []cells.Offer{{InstanceType: "nano", Zone: "local"}}, nil
		}
		return nil, &placement.NoCapacityError{}
	}
	h.put(pod("a", append(change, func(p *corev1.Pod) { p.Spec.NodeName = "spot" })...))
	h.waitsOut(shortFor - time.Second)
	return evictions
}

// waitsOut looks at pod a whenever it wants to be looked at, for a while.
func (h *harness) waitsOut(long time.Duration) {
	h.Helper()
	for end := h.clock.Now().Add(long); ; {
		again := h.must("a")
		if again <= 0 {
			h.Fatalf("the pod is not looked at again, %s before the end", end.Sub(h.clock.Now()))
		}
		if left := end.Sub(h.clock.Now()); again > left {
			h.clock.Step(left)
			return
		}
		h.clock.Step(again)
	}
}

func owned(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: "job", Controller: new(true)}}
}

func TestAPodLeavesASpotNodeThatHasNothingForIt(t *testing.T) {
	h := newHarness(t)
	evictions := short(h, owned)
	if *evictions > 0 {
		t.Fatalf("evicted before %s", shortFor)
	}
	h.want("events before", h.events, "Warning NoCapacity")
	h.clock.Step(time.Second)
	h.must("a")
	if *evictions != 1 {
		t.Errorf("%d evictions after %s, want one", *evictions, shortFor)
	}
	if !slices.Contains(h.events, "Normal Evicted") {
		t.Errorf("events %q: want Evicted", h.events)
	}
}

func TestAPodStaysOnASpotNodeThatHasNothingForIt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		set    func(*harness)
		said   string // beside NoCapacity; "" for nothing
	}{
		"no controller": {func(*corev1.Pod) {}, func(*harness) {}, "Warning UnservablePodStays"},
		"a disk":        {owned, func(h *harness) { h.needs.Disks = []volumes.Disk{{ID: "vol"}} }, ""},
		"no other node": {owned, func(h *harness) {
			h.c.cfg.Elsewhere = func(context.Context, *corev1.Pod) []string { return []string{"full"} }
		}, ""},
		"one node":                   {owned, func(h *harness) { h.c.cfg.Elsewhere = nil }, ""},
		"an unknown cell may run it": {owned, func(h *harness) { h.cells.behind, h.cells.unsure = "not listed yet", true }, ""},
		"a budget": {owned, func(h *harness) {
			h.client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewTooManyRequests("a disruption budget", 0)
			})
		}, "Warning EvictionBlocked"},
	} {
		h := newHarness(t)
		evictions := short(h, c.change)
		c.set(h)
		h.waitsOut(2 * longestBackoff)
		if *evictions > 0 {
			t.Errorf("%s: evicted", name)
		}
		want := []string{"Warning NoCapacity"}
		if c.said != "" {
			want = append(want, c.said)
		}
		slices.Sort(want)
		got := slices.Sorted(slices.Values(h.events))
		if !slices.Equal(got, want) {
			t.Errorf("%s: events %q, want %q", name, got, want)
		}
	}
}
