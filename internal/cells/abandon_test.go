package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// abandoned is a cell whose launch was given up, now.
func (b *bench) abandoned(id string) *entry {
	cell := Cell{ID: id, Pod: ref(id), Phase: apiv1.Terminating, Reason: "nobody knows", Offerings: []Offering{{Zone: "z"}}}
	cell.step(apiv1.StepEnded, b.clock.Now())
	return b.stored(cell)
}

// abandoning returns what finds out what became of such cells.
func (b *bench) abandoning() *abandoned {
	return &abandoned{loop: b.loop, records: b.records, inventory: b.inventory, listLag: time.Minute, removals: b.removing()}
}

func TestAnAbandonedLaunchIsGoneAfterTwoCompleteLooks(t *testing.T) {
	b := newBench(t)
	s, e, ended := b.abandoning(), b.abandoned("c"), b.clock.Now()
	for _, tc := range []struct {
		name string
		seen snapshot
		gone bool
	}{
		{"too soon", snapshot{began: ended.Add(time.Minute)}, false},
		{"another zone", snapshot{began: ended.Add(70 * time.Second), missing: []string{"z"}}, false},
		{"others are not shown", snapshot{began: ended.Add(80 * time.Second), lacks: true}, false},
		{"the first", snapshot{began: ended.Add(2 * time.Minute)}, false},
		{"the same", snapshot{began: ended.Add(2 * time.Minute)}, false},
		{"the second", snapshot{began: ended.Add(3 * time.Minute)}, true},
	} {
		want := waitFor("", time.Second)
		if tc.gone {
			want = done
		}
		got, err := bare(s.adoptOrRemove(t.Context(), e, tc.seen))
		if err != nil || got != want || (e.cell().Phase == apiv1.Gone) != tc.gone || b.asked() == tc.gone {
			t.Errorf("%s: it is %s, %+v (%v)", tc.name, e.cell().Phase, got, err)
		}
	}
	if e.cell().Reason != "nobody knows" {
		t.Errorf("it is gone for %q", e.cell().Reason)
	}
}

func TestAnAbandonedLaunchHasTheInstanceThatAListShows(t *testing.T) {
	b := newBench(t)
	s, e := b.abandoning(), b.abandoned("c")
	b.edit(e, func(cell *Cell) { cell.Launch = &Launch{ID: "l", Index: 1, Shared: true} })
	seen := snapshot{
		byCell: map[string]string{"c": "other", e.cell().JoinID(): "i"}, byID: map[string]cloud.Instance{"i": {ID: "i"}}, lacks: true,
	}
	got, err := s.adoptOrRemove(t.Context(), e, seen)
	if i := e.cell().Instance; err != nil || got != done || i == nil || i.ID != "i" || e.cell().Phase != apiv1.Terminating {
		t.Errorf("it is %s with %v, %+v (%v)", e.cell().Phase, i, got, err)
	}
	if b.table.havingInstance("i") != e {
		t.Error("the instance is not found as the cell's")
	}
}
