package pods

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatTheEndOfACellShowsOfItsPod(t *testing.T) {
	instance := &cloud.Instance{ID: "i"}
	bound := []apiv1.Step{{Name: apiv1.StepBound, Time: metav1.NewMicroTime(time.Unix(1e9, 0))}}
	for name, tc := range map[string]struct {
		cell cells.Cell
		want past
	}{
		"it was bound":                {cells.Cell{Instance: instance, Steps: bound}, past{ran: true}},
		"it was not ready":            {cells.Cell{Instance: instance}, past{failures: 3}},
		"the cloud takes it back":     {cells.Cell{Instance: instance, Notice: cells.Notice{Interrupted: time.Unix(1, 0)}}, past{failures: 2, refusal: "no"}},
		"it was interrupted":          {cells.Cell{Instance: instance, Cause: cells.CauseInterrupted}, past{failures: 2, refusal: "no"}},
		"Kip's operator is to mend":   {cells.Cell{Instance: instance, Cause: cells.CauseUnfit}, past{failures: 2, refusal: "no"}},
		"the cloud refused the pod":   {cells.Cell{Cause: cells.CauseNotLaunched, Refusals: 1, Reason: "why"}, past{failures: 3, refusal: "why"}},
		"the cloud refused for lack":  {cells.Cell{Cause: cells.CauseNotLaunched}, past{failures: 2, refusal: "no"}},
		"nobody asked the cloud ever": {cells.Cell{}, past{failures: 2, refusal: "no"}},
	} {
		h := newHarness(t)
		p := pod("a")
		h.put(p)
		h.c.core.history.note(apiv1.Ref(p), func(p *past) { p.failures, p.refusal = 2, "no" })
		tc.cell.Pod = apiv1.Ref(p)
		h.c.core.history.cellGone(tc.cell)
		got := h.c.core.history.get(p.UID)
		if got.ran && got.failures == 0 {
			got.refusal = "" // it counts with failures only
		}
		if got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// Between the end of a cell and what is learned from it, a worker may find the pod without a cell.
func TestAPodHasRunOnceItIsBound(t *testing.T) {
	h := newHarness(t)
	p := pod("a")
	h.put(p)
	bound := []apiv1.Step{{Name: apiv1.StepBound, Time: metav1.NewMicroTime(time.Unix(1e9, 0))}}
	h.c.CellChanged(cells.Cell{Pod: apiv1.Ref(p), Phase: apiv1.Draining, Steps: bound})
	if !h.c.core.history.get(p.UID).ran {
		t.Error("a pod that was bound is taken for one that no kubelet has had")
	}
}
