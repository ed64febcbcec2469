package pods

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
)

func TestAReasonIsReportedOnceAndABudgetsFiguresNotAgain(t *testing.T) {
	over, none := events.NewBudgetExceeded(errors.New("over")), events.NewPodOutOfCapacity(errors.New("none"))
	type report struct {
		because cause
		said    events.Event
		why     string
	}
	for name, tc := range map[string]struct {
		reports []report
		want    []string
	}{
		"the same": {[]report{{outOfCapacity, none, "a"}, {outOfCapacity, none, "a"}}, []string{"Warning NoCapacity"}},
		"another why": {[]report{{outOfCapacity, none, "a"}, {outOfCapacity, none, "b"}},
			[]string{"Warning NoCapacity", "Warning NoCapacity"}},
		"another figure of a budget": {[]report{{overBudget, over, "a"}, {overBudget, over, "b"}}, []string{"Warning BudgetExceeded"}},
		"a budget after capacity": {[]report{{outOfCapacity, none, "a"}, {overBudget, over, "b"}},
			[]string{"Warning NoCapacity", "Warning BudgetExceeded"}},
	} {
		h := newHarness(t)
		p := pod("a")
		h.put(p)
		for _, r := range tc.reports {
			h.c.core.waits.report(p, r.because, r.said, r.why, time.Time{})
		}
		h.want(name, h.events, tc.want...)
	}

	// A pod that has waited enough is told again.
	h := newHarness(t)
	p := pod("a")
	h.put(p)
	h.c.core.waits.report(p, overBudget, over, "a", time.Time{})
	h.c.core.waits.end(apiv1.Ref(p))
	h.c.core.waits.report(p, overBudget, over, "b", time.Time{})
	h.want("after its end", h.events, "Warning BudgetExceeded", "Warning BudgetExceeded")
}

func TestAShortageLastsUntilThePodWaitsForAnythingElse(t *testing.T) {
	none := events.NewPodOutOfCapacity(errors.New("none"))
	for name, tc := range map[string]struct {
		between func(*harness)
		lasts   bool
	}{
		"it waits for capacity": {func(h *harness) { h.c.core.waits.report(pod("a"), outOfCapacity, none, "b", time.Time{}) }, true},
		"it waits for money": {func(h *harness) {
			h.c.core.waits.report(pod("a"), overBudget, events.NewBudgetExceeded(errors.New("over")), "b", time.Time{})
		}, false},
		"there was capacity": {func(h *harness) { h.c.core.waits.foundCapacity("uid-a") }, false},
	} {
		h := newHarness(t)
		h.put(pod("a"))
		began := h.clock.Now()
		h.c.core.waits.noteShort(apiv1.Ref(pod("a")), began)
		h.clock.Step(time.Minute)
		tc.between(h)
		if since := h.c.core.waits.noteShort(apiv1.Ref(pod("a")), h.clock.Now()); since.Equal(began) != tc.lasts {
			t.Errorf("%s: it is short since %s, began at %s", name, since, began)
		}
	}
}
