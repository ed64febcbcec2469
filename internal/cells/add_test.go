package cells

import (
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/store"
)

func TestANewCellIsThereUnlessItIsSurelyNotStored(t *testing.T) {
	lost := errors.New("no answer")
	for name, tc := range map[string]struct {
		op    string // of the store that fails
		err   error
		there bool
		ends  bool // of the table
		fails bool // of Run
	}{
		"it is stored":           {"", nil, true, false, false},
		"the answer is lost":     {"applied", lost, true, true, false},
		"the store has no room":  {"apply", store.ErrNoSpace, false, false, false},
		"another Kip leads":      {"apply", store.ErrNotLeader, false, false, true},
		"the store says nothing": {"apply", lost, true, true, false},
	} {
		b := newBench(t)
		b.hook = func(op, _ string) error {
			if tc.op == "applied" && op == "applied" || tc.op == "apply" && op != "applied" && op != "get" {
				return tc.err
			}
			return nil
		}
		e := newEntry(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Requested}, 0)
		b.table.reserveLocked(e)
		err := b.additions.add(t.Context(), e)
		why, _ := b.table.ending(e)
		found := b.table.find("c") == e
		if (err != nil) != (tc.err != nil) || found != tc.there || (why != "") != tc.ends || len(b.loop.failed) == 1 != tc.fails {
			t.Errorf("%s: found %t, ends for %q, Kip ends %d (%v)", name, found, why, len(b.loop.failed), err)
		}
		if reserved := b.table.byPod[ref("a").UID] == "c"; reserved != tc.there {
			t.Errorf("%s: the pod's cell is reserved %t", name, reserved)
		}
		if tc.err == nil && (!slices.Equal(b.woken(), []string{"c"}) || len(b.shown) != 1) {
			t.Errorf("%s: the cell is not woken, or observers are not told", name)
		}
	}
}

func TestOnlyWhatEndsIsBilled(t *testing.T) {
	b := newBench(t)
	bills := bills{limits: limits{}}
	running := Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Bound, Offerings: []Offering{{InstanceType: "nano", PricePerHour: 2}}}
	running.step(apiv1.StepLaunched, b.clock.Now())
	b.clock.Step(30 * time.Minute)
	gone, stopped := running.clone(), running.clone()
	gone.Phase = apiv1.Gone
	stopped.Stopped, stopped.BilledSeconds = true, 1800
	for name, tc := range map[string]struct {
		after   *Cell
		costs   int
		entries int
	}{"it runs on": {&running, 0, 0}, "it is gone": {&gone, 1, 1}, "it is stopped": {&stopped, 0, 1}} {
		out := bills.open(b.clock.Now())
		bills.add(&out, &running, tc.after)
		if len(out.Costs) != tc.costs || len(out.Entries) != tc.entries || len(out.Spent.Dollars) != 0 {
			t.Errorf("%s: %+v", name, out)
		}
		if tc.costs == 1 && out.Costs[0].Dollars != 1 {
			t.Errorf("half an hour costs $%v", out.Costs[0].Dollars)
		}
	}
}

func TestACellThatIsGoneIsForgotten(t *testing.T) {
	b := newBench(t)
	e := b.running("c")
	b.terminations.byInstance["i-c"] = &termination{}
	end := e.cell().clone()
	end.Phase = apiv1.Gone
	(&adoptions{table: b.table, budgets: b.budgets, pools: b.pools, terminations: b.terminations}).adoptLocked(e, &end)
	if e.cell().Phase != apiv1.Gone || b.table.find("c") != nil || b.table.havingInstance("i-c") != nil || len(b.table.byPod) != 0 ||
		len(b.terminations.byInstance) != 0 {
		t.Errorf("it is %s, and found", e.cell().Phase)
	}
}
