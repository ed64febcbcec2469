package pods

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
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
		return true, nil, h.forbidden
	})
	h.elsewhere = func(context.Context, *corev1.Pod) []string { return []string{"full", "free"} }
	h.turnsAway = func(context.Context, *corev1.Pod) bool { return true }
	h.place = func(p *corev1.Pod) ([]offering.Offering, error) {
		if p.Spec.NodeName == "free" {
			return []offering.Offering{{InstanceType: "nano", Zone: "local"}}, nil
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
			h.elsewhere = func(context.Context, *corev1.Pod) []string { return []string{"full"} }
		}, ""},
		"its like come back": {owned, func(h *harness) {
			h.turnsAway = func(context.Context, *corev1.Pod) bool { return false }
		}, ""},
		"one node":                   {owned, func(h *harness) { h.elsewhere = nil }, ""},
		"an unknown cell may run it": {owned, func(h *harness) { h.cells.behind, h.cells.unsure = "not listed yet", true }, ""},
	} {
		h := newHarness(t)
		evictions := short(h, c.change)
		c.set(h)
		h.waitsOut(2 * longestBackoff)
		if *evictions > 0 {
			t.Errorf("%s: evicted", name)
		}
		h.said(name, c.said)
	}
}

// A launch that fails shows that there is still nothing: the time goes on.
func TestALaunchWithoutCapacityDoesNotBeginThePodsTimeAnew(t *testing.T) {
	for launched, want := range map[bool]int{false: 1, true: 0} {
		h := newHarness(t)
		evictions := short(h, owned)
		none := h.place
		h.place = func(*corev1.Pod) ([]offering.Offering, error) {
			return []offering.Offering{{InstanceType: "nano", Zone: "local"}}, nil
		}
		h.clock.Step(longestBackoff)
		h.must("a")
		h.want("requests", h.cells.requests, "uid-a#1")
		h.place = none
		gone := cells.Cell{Pod: apiv1.PodReference{Namespace: "ns", Name: "a", UID: "uid-a"}, Phase: apiv1.Gone, Cause: cells.CauseNotLaunched}
		if launched {
			gone.Instance, gone.Cause = &cloud.Instance{ID: "i"}, cells.CauseLost
		}
		h.cells.gone("uid-a")
		h.c.CellChanged(gone)
		h.clock.Step(time.Second)
		h.must("a")
		if *evictions != want {
			t.Errorf("a cell was launched: %t; %d evictions, want %d", launched, *evictions, want)
		}
	}
}

func TestNoNodeTurnsPodsAwayForOneThatADisruptionBudgetKeeps(t *testing.T) {
	h := newHarness(t)
	h.forbidden = apierrors.NewTooManyRequests("a disruption budget", 0)
	evictions := short(h, owned)
	asked := 0
	h.turnsAway = func(context.Context, *corev1.Pod) bool {
		asked++
		return true
	}
	h.clock.Step(time.Second)
	h.waitsOut(20 * leaveRetry)
	if asked != 1 || *evictions < 10 {
		t.Errorf("the node was to turn pods away %d times, and %d evictions were tried", asked, *evictions)
	}
	h.forbidden = nil
	h.clock.Step(leaveRetry)
	h.must("a")
	if asked != 2 || !slices.Contains(h.events, "Normal Evicted") {
		t.Errorf("without the budget: the node was to turn pods away %d times; %q", asked, h.events)
	}
}

// What a pod waited for in between, and how long, was no shortage.
func TestATimeWithoutMoneyIsNoTimeWithoutCapacity(t *testing.T) {
	h := newHarness(t)
	evictions := short(h, owned)
	none := h.place
	h.place = func(*corev1.Pod) ([]offering.Offering, error) {
		return []offering.Offering{{InstanceType: "nano", Zone: "local"}}, nil
	}
	h.cells.refuse = &cells.BudgetError{}
	h.clock.Step(longestBackoff)
	h.must("a")
	if !slices.Contains(h.events, "Warning BudgetExceeded") {
		t.Fatalf("the pod does not wait for money: %q", h.events)
	}
	h.place = none
	h.clock.Step(budgetRetry)
	h.must("a")
	if *evictions > 0 {
		t.Error("a pod is evicted whose node lacks capacity only now")
	}
	h.waitsOut(shortFor - time.Second)
	h.clock.Step(time.Second)
	h.must("a")
	if *evictions != 1 {
		t.Errorf("%d evictions after %s without capacity", *evictions, shortFor)
	}
}

func TestANodeTurnsPodsAwayOnlyForOneThatLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		set    func(*harness)
		asked  bool
	}{
		"it leaves":     {owned, func(*harness) {}, true},
		"no controller": {func(*corev1.Pod) {}, func(*harness) {}, false},
		"no other node": {owned, func(h *harness) {
			h.elsewhere = func(context.Context, *corev1.Pod) []string { return []string{"full"} }
		}, false},
		"an unknown cell may run it": {owned, func(h *harness) { h.cells.behind, h.cells.unsure = "not listed yet", true }, false},
	} {
		h := newHarness(t)
		short(h, c.change)
		asked := false
		h.turnsAway = func(_ context.Context, p *corev1.Pod) bool {
			asked = true
			return p.Spec.NodeName == "spot"
		}
		c.set(h)
		h.clock.Step(time.Second)
		h.must("a")
		if asked != c.asked {
			t.Errorf("%s: the node is to turn pods away: %t", name, asked)
		}
	}
}

// said checks what has been reported of a pod without capacity, and no more.
func (h *harness) said(name, besides string) {
	h.Helper()
	want := []string{"Warning NoCapacity"}
	if besides != "" {
		want = append(want, besides)
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(h.events)); !slices.Equal(got, want) {
		h.Errorf("%s: events %q, want %q", name, got, want)
	}
}

func TestABudgetThatForbidsToMoveAPodIsAskedAgain(t *testing.T) {
	h := newHarness(t)
	evictions := short(h, owned)
	h.forbidden = apierrors.NewTooManyRequests("a disruption budget", 0)
	h.clock.Step(time.Second)
	if again := h.must("a"); *evictions != 1 || again != leaveRetry {
		t.Errorf("%d evictions are asked for, and the next after %s, want one and %s", *evictions, again, leaveRetry)
	}
	*evictions = 0
	h.waitsOut(10 * leaveRetry)
	if *evictions < 9 || *evictions > 10 {
		t.Errorf("%d evictions are asked for in 10 times %s", *evictions, leaveRetry)
	}
	h.said("a budget", "Warning EvictionBlocked")
	h.forbidden = nil
	h.clock.Step(leaveRetry)
	h.must("a")
	if !slices.Contains(h.events, "Normal Evicted") {
		t.Errorf("events %q: want Evicted", h.events)
	}
}

// Each look asks for offers, and may ask the API server: a thousand pods wait for spot capacity
// for hours.
func TestAPodWithoutCapacityIsLookedAtLessAndLess(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		change func(*corev1.Pod)
	}{
		"no capacity":             {&placement.NoCapacityError{}, owned},
		"no controller":           {&placement.NoCapacityError{}, func(*corev1.Pod) {}},
		"the cloud does not tell": {errors.New("no answer"), owned},
	} {
		h := newHarness(t)
		looks, others, works := 0, 0, false
		h.elsewhere = func(context.Context, *corev1.Pod) []string {
			others++
			return []string{"free"}
		}
		h.turnsAway = func(context.Context, *corev1.Pod) bool { return true }
		h.forbidden = apierrors.NewTooManyRequests("a disruption budget", 0)
		h.client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, h.forbidden })
		h.place = func(p *corev1.Pod) ([]offering.Offering, error) {
			if p.Spec.NodeName == "free" || works {
				return []offering.Offering{{InstanceType: "nano", Zone: "local"}}, nil
			}
			looks++
			return nil, c.err
		}
		h.put(pod("a", c.change))
		h.waitsOut(10 * time.Minute)
		if most := 5 + int(10*time.Minute/scarceRetry); looks > most || looks < most-2 {
			t.Errorf("%s: %d looks in 10 minutes, want %d", name, looks, most)
		}
		if name == "no controller" && others != 1 {
			t.Errorf("%s: other nodes are looked at %d times for a pod that stays, and is told so", name, others)
		}
		// What was waited for does not delay what comes after a cell.
		works = true
		h.clock.Step(scarceRetry)
		h.must("a")
		h.want(name, h.cells.requests, "uid-a#1")
		h.cells.gone("uid-a")
		h.c.CellChanged(cells.Cell{
			Pod:      apiv1.PodReference{Namespace: "ns", Name: "a", UID: "uid-a"},
			Phase:    apiv1.Gone,
			Instance: &cloud.Instance{ID: "i"},
		})
		works = false
		h.clock.Step(time.Second)
		if again := h.must("a"); again != time.Second {
			t.Errorf("%s: the first look after a cell waits %s for the next", name, again)
		}
	}
}
