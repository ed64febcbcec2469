package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

func TestALostCellEndsForItsSignUnlessItIsHeard(t *testing.T) {
	long, now := -time.Hour, time.Duration(0)
	for name, tc := range map[string]struct {
		phase  apiv1.Phase
		sure   bool
		deaf   string        // why Kip may not hear it
		heard  time.Duration // from now
		fault  error
		ends   bool
		marked bool
		unfit  bool
	}{
		"it is silent":                        {apiv1.Bound, false, "", long, nil, true, false, false},
		"Kip may not hear it":                 {apiv1.Bound, false, "most are silent", long, nil, false, false, false},
		"it was just heard":                   {apiv1.Bound, false, "", now, nil, false, false, false},
		"the cloud is sure, and has no more":  {apiv1.Bound, true, "", long, cloud.ErrCapacity, true, true, false},
		"the cloud is sure, and it was heard": {apiv1.Bound, true, "", now, nil, false, false, false},
		"the cloud cannot start it":           {apiv1.Booting, true, "", long, cloud.ErrUnfit, true, false, true},
	} {
		b := newBench(t)
		s := b.endingLost()
		e := b.running("c")
		if tc.phase == apiv1.Booting {
			e = b.booting("d")
		}
		launched := e.cell().clone()
		launched.Template = b.recipe.template(launched.CloudInit())
		e.current.Store(&launched)
		heard := b.clock.Now().Add(tc.heard)
		ends := s.end(t.Context(), e, 1, sign{
			cause: CauseLost, why: "why", sure: tc.sure, fault: tc.fault, heard: func() time.Time { return heard },
			disruption: tc.deaf,
		})
		if why, _ := b.table.ending(e); ends != tc.ends || (why == "why") != tc.ends || len(b.said) != 1 {
			t.Errorf("%s: it ends %t for %q, said %v", name, ends, why, b.said)
		}
		if (len(b.marked) == 1) != tc.marked || (len(s.blockers.byKind) == 1) != tc.unfit {
			t.Errorf("%s: marked %v, unfit are %d", name, b.marked, len(s.blockers.byKind))
		}
		if tc.ends && (!s.end(t.Context(), e, 1, sign{}) || e.cause != CauseLost) {
			t.Errorf("%s: it is lost a second time, for %s", name, e.cause)
		}
	}
}

func TestOnlyWhatMayCostAPodCountsWhenACellIsLost(t *testing.T) {
	b := newBench(t)
	b.guard = guard.New(guard.Config{Limit: guard.Limit{Least: 1, Window: time.Hour}, Clock: b.clock})
	b.holds.guard = b.guard
	s := b.endingLost()
	for _, tc := range []struct {
		name string
		e    *entry
		sure bool
		ends bool
	}{
		{"it boots", b.booting("a"), false, true},
		{"its instance has surely ended", b.running("b"), true, true},
		{"it runs a pod", b.running("c"), false, true},
		{"it runs another", b.running("d"), false, false},
		{"it boots, and none may end any more", b.booting("e"), false, true},
		{"its instance has surely ended, and none may end any more", b.running("f"), true, true},
	} {
		long := func() time.Time { return b.clock.Now().Add(-time.Hour) }
		ends := s.end(t.Context(), tc.e, 6, sign{cause: CauseLost, why: "why", sure: tc.sure, heard: long})
		if why, _ := b.table.ending(tc.e); ends != tc.ends || (why != "") != ends {
			t.Errorf("%s: it ends %t, for %q", tc.name, ends, why)
		}
	}
}
