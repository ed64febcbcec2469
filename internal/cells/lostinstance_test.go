package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

func TestWhatTheCloudSaysOfALostInstanceIsItsCellsCause(t *testing.T) {
	for name, tc := range map[string]struct {
		fault error
		cause Cause
		why   string
	}{
		"nothing":       {nil, CauseLost, "instance i is no longer in the cloud's list"},
		"no capacity":   {cloud.ErrCapacity, CauseInterrupted, "the cloud has ended instance i: " + cloud.ErrCapacity.Error()},
		"no quota":      {cloud.ErrQuota, CauseInterrupted, "the cloud has ended instance i: " + cloud.ErrQuota.Error()},
		"it cannot run": {cloud.ErrUnfit, CauseUnfit, "the cloud has ended instance i: " + cloud.ErrUnfit.Error()},
		"anything else": {cloud.ErrRefused, CauseLost, "the cloud has ended instance i: " + cloud.ErrRefused.Error()},
	} {
		a := absent{cell: &Cell{Instance: &cloud.Instance{ID: "i"}}}
		if got := signOf(a, true, tc.fault); got.cause != tc.cause || got.why != tc.why || !got.sure {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestCellsAreLostForWhatALookShows(t *testing.T) {
	short := cloud.No(cloud.ErrCapacity, cloud.Scope{}, errors.New("no room"))
	type shown struct {
		absent, due, ended, stopped bool
		state                       cloud.State
		fault                       error
	}
	for name, tc := range map[string]struct {
		shown  shown
		bound  bool // it runs a pod, and was heard long ago
		heard  bool // a moment ago
		held   bool // Kip kept it waiting a moment ago
		cause  Cause
		marked bool
	}{
		"it is absent for a moment":         {shown: shown{absent: true, ended: true}},
		"the cloud says that it is there":   {shown: shown{absent: true, due: true}},
		"it is gone":                        {shown: shown{absent: true, due: true, ended: true, state: cloud.Gone}, cause: CauseLost},
		"the cloud has ended it":            {shown: shown{absent: true, due: true, ended: true, fault: short}, cause: CauseInterrupted, marked: true},
		"somebody has stopped it":           {shown: shown{stopped: true}, cause: CauseLost},
		"the cloud has stopped it":          {shown: shown{stopped: true, fault: short}, cause: CauseInterrupted, marked: true},
		"it runs a pod, and is gone":        {shown: shown{absent: true, due: true, ended: true}, bound: true, cause: CauseLost},
		"it is stopped, and answers":        {shown: shown{stopped: true}, bound: true, heard: true},
		"it is unknown, and answers":        {shown: shown{absent: true, due: true, ended: true}, bound: true, heard: true},
		"it is unknown, and may answer yet": {shown: shown{absent: true, due: true, ended: true}, bound: true, held: true},
		"it is surely gone, and may not answer": {
			shown: shown{absent: true, due: true, ended: true, state: cloud.Gone}, bound: true, held: true, cause: CauseLost,
		},
	} {
		b := newBench(t)
		e := b.booting("c")
		if tc.bound {
			link := b.heardAgo("d", time.Hour)
			e = b.table.find("d")
			if tc.heard {
				link.heard = b.clock.Now()
			}
			if tc.held {
				link.held = b.clock.Now()
			}
		}
		id := e.cell().Instance.ID
		seen, f := snapshot{began: b.clock.Now(), ended: map[string]bool{id: tc.shown.ended, "": true}}, findings{}
		if tc.shown.absent {
			f.absent = []absent{{cell: e.cell(), due: tc.shown.due}, {cell: &Cell{ID: "x", Instance: &cloud.Instance{}}, due: true}}
		}
		if tc.shown.stopped {
			f.stopped = []*Cell{e.cell()}
			seen.byID = map[string]cloud.Instance{id: {ID: id, State: cloud.Stopped, Fault: tc.shown.fault}}
		}
		b.lost().endLost(t.Context(), seen, f, map[string]cloud.State{id: tc.shown.state}, map[string]error{id: tc.shown.fault})
		if why, cause := b.table.ending(e); cause != tc.cause || (len(b.marked) == 1) != tc.marked {
			t.Errorf("%s: it ends for %q, %s, marked %v", name, why, cause, b.marked)
		}
		woken := map[string]bool{}
		for _, id := range b.woken() {
			woken[id] = true
		}
		if woken[e.id] != (tc.shown.absent || tc.cause != "") {
			t.Errorf("%s: woken are %v", name, woken)
		}
	}
}

func TestACellWhoseInstanceWasToBeTakenIsLostUnlessItAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		state cloud.State
		ago   time.Duration // it was heard
		used  bool          // the guard admits no end of a pod more
		ends  bool
		heard bool
	}{
		"it is silent":                       {cloud.Running, guard.Fresh, false, true, false},
		"it answers":                         {cloud.Running, guard.Fresh - 1, false, false, true},
		"it is silent, with many others":     {cloud.Running, guard.Fresh, true, false, false},
		"it is stopped, as are many others":  {cloud.Stopped, guard.Fresh, true, true, false},
		"the cloud does not show it, either": {"", guard.Fresh, true, false, false},
	} {
		b := newBench(t)
		b.guard = guard.New(guard.Config{Limit: guard.Limit{Least: 1, Window: time.Hour}, Clock: b.clock})
		b.holds.guard = b.guard
		s := b.lost()
		if tc.used {
			other := unrequested(b.running("other").cell(), "why")
			if !b.holds.admit(t.Context(), b.table.find("other"), other, 2) {
				t.Fatal("the first is held back")
			}
		}
		b.heardAgo("c", tc.ago)
		e := b.table.find("c")
		if tc.state != "" {
			b.listed(snapshot{byID: map[string]cloud.Instance{"i-c": {ID: "i-c", State: tc.state}}})
		}
		heard := s.isHeard(e)
		s.endTakenBack(t.Context(), e)
		why, cause := b.table.ending(e)
		if (why == tookBack) != tc.ends || tc.ends && cause != CauseInterrupted || heard != tc.heard || e.cell().Phase != apiv1.Bound {
			t.Errorf("%s: it ends for %q, %s; heard %t", name, why, cause, heard)
		}
	}
}
