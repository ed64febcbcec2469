package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// listing returns what asks for the cloud's list, and acts on it.
func (b *bench) listing() *lister {
	b.Helper()
	if err := b.generation.open(b.Context()); err != nil {
		b.Fatal(err)
	}
	_, orphans := b.ending()
	return &lister{
		loop: b.loop, calls: b.calls, inventory: b.inventory, owner: "me",
		silentZones: &silentZones{loop: b.loop, shortages: b},
		comparing: &comparing{
			known:            &knownCells{table: b.table, loop: b.loop, calls: b.calls, terminations: b.terminations},
			foreign:          &foreign{log: b.loop.log, owner: "me"},
			inventory:        b.inventory,
			generationChecks: &generationChecks{loop: b.loop, store: b.records.store, generation: b.generation, inventory: b.inventory},
			describing:       &describing{calls: b.calls, log: b.loop.log},
			consequences: &consequences{
				loop: b.loop, observers: b.observers, orphans: orphans, lost: b.lost(), owner: "me",
				tagging:  &tagging{table: b.table, loop: b.loop, calls: b.calls, inventory: b.inventory, due: newGather[*entry]()},
				boosting: &boosting{table: b.table, loop: b.loop, records: b.records, calls: b.calls, due: newGather[*entry]()},
			},
		},
	}
}

func TestWhatTheListLacksIsLostAndWhatNoCellHasEndsInTime(t *testing.T) {
	b := newBench(t)
	s := b.listing()
	there, gone, waits := b.booting("there"), b.booting("gone"), b.requested("waits")[0]
	of := func(id, owner string) cloud.Instance {
		return cloud.Instance{ID: id, State: cloud.Running, Zone: "z", Tags: map[string]string{cloud.TagOwner: owner}}
	}
	b.cloud.set(func() {
		b.cloud.instances["i-there"], b.cloud.instances["i-orphan"] = of("i-there", "me"), of("i-orphan", "me")
		b.cloud.instances["i-others"] = of("i-others", "others")
	})
	for _, tc := range []struct {
		name   string
		after  time.Duration
		lost   bool
		orphan bool // is to end
	}{
		{"the first list", 0, false, false},
		{"a list of a little later", time.Second, false, false},
		{"one of a while later", orphanAge, false, true},
		{"one of long after", missingAge, true, true},
	} {
		b.clock.Step(tc.after)
		s.listOnce(t.Context())
		last := b.inventory.last()
		if !last.began.Equal(b.clock.Now()) || len(last.byID) != 2 {
			t.Errorf("%s: the snapshot is of %s, with %d instances", tc.name, last.began, len(last.byID))
		}
		if why, cause := b.table.ending(gone); (why != "") != tc.lost || tc.lost && cause != CauseLost {
			t.Errorf("%s: the cell without its instance ends for %q, %s", tc.name, why, cause)
		}
		if asked := b.terminations.byInstance["i-orphan"] != nil; asked != tc.orphan || b.found != 1 || len(b.terminations.byInstance) > 1 {
			t.Errorf("%s: the orphan ends %t, %d were found, ends %v", tc.name, asked, b.found, b.terminations.byInstance)
		}
		woken := map[string]bool{}
		for _, id := range b.woken() {
			woken[id] = true
		}
		if !woken[waits.id] {
			t.Errorf("%s: a cell that waits for a list is not woken: %v", tc.name, woken)
		}
	}
	if why, _ := b.table.ending(there); why != "" || there.cell().Phase != apiv1.Booting {
		t.Errorf("a cell that is listed ends for %q", why)
	}
}

func TestAZoneThatDoesNotAnswerForTwoListsIsNotLaunchedIn(t *testing.T) {
	b := newBench(t)
	s := b.listing()
	b.cloud.set(func() { b.cloud.blind = []string{"z"} })
	s.listOnce(t.Context())
	if len(b.marked) != 0 || b.inventory.last().covers("z") || !b.inventory.last().covers("y") {
		t.Errorf("after one list, marked is %v", b.marked)
	}
	b.clock.Step(silentZoneAge)
	if s.listOnce(t.Context()); len(b.marked) != 1 || cloud.ScopeOf(b.marked[0]).Zone != "z" {
		t.Errorf("after two, marked is %v", b.marked)
	}
}
