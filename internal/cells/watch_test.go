package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestABoundCellStaysConnectedUntilItIsToEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		away   bool
		ending Cause
		again  time.Duration
		phase  apiv1.Phase
	}{
		"it is connected":     {false, "", 0, apiv1.Bound},
		"it is away":          {true, "", silentPoll, apiv1.Bound},
		"its pod has ended":   {false, CausePodEnded, 0, apiv1.Draining},
		"its pod is deleted":  {false, CausePodDeleted, 0, apiv1.Draining},
		"it is away and lost": {true, CauseLost, 0, apiv1.Draining},
	} {
		b := newBench(t)
		s := &watching{
			loop: b.loop, records: b.records, inventory: b.inventory, connections: b.connecting(), evacuating: b.evacuating(),
			releases: b.releasing(),
		}
		e := b.running("c")
		link := b.linked(e)
		link.connected = !tc.away
		if tc.ending != "" {
			b.end(e, tc.ending)
		}
		// Its agent is given its configuration aside.
		again, err := after(b.through(func() (progress, error) { return s.Step(t.Context(), e) }))
		got := e.cell()
		if again != tc.again || err != nil || got.Phase != tc.phase || b.asked() != (tc.again > 0) {
			t.Errorf("%s: it is %s, again after %s (%v)", name, got.Phase, again, err)
		}
		if ended := got.Phase == apiv1.Draining; ended &&
			(got.Cause != tc.ending || got.Reason != "why" || got.PodEnded != (tc.ending == CausePodEnded)) {
			t.Errorf("%s: it ends for %q, %s, its pod ended %t", name, got.Reason, got.Cause, got.PodEnded)
		}
		if configured := e.connection().configured; configured != (tc.again == 0 && tc.ending == "") {
			t.Errorf("%s: its agent has its configuration %t", name, configured)
		}
	}
}
