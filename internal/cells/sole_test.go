package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func TestAReadyCellWaitsUntilItIsTheOnlyOneToRunItsPod(t *testing.T) {
	for name, tc := range map[string]struct {
		pod, standby string
		loaded       bool // by an earlier process
		ending       string
		listed       bool // the cloud's list has come
		ready        bool
	}{
		"a standby cell is given to a pod":             {"a", "pool", false, "", true, true},
		"one is given, and nothing is listed yet":      {"a", "pool", false, "", false, false},
		"one is given, and is to end":                  {"a", "pool", false, "why", false, true},
		"one is not given yet":                         {"", "pool", false, "", false, true},
		"the cell was launched for its pod":            {"a", "", false, "", false, true},
		"an earlier Kip's, and nothing is listed yet":  {"a", "", true, "", false, false},
		"an earlier Kip's, and all is listed":          {"a", "", true, "", true, true},
		"an earlier Kip's is to end, whatever it runs": {"a", "", true, "why", false, true},
	} {
		b := newBench(t)
		s := &sole{table: b.table, lineage: b.lineage, inventory: b.inventory, exclusion: &exclusion{
			table: b.table, loop: b.loop, events: b.events, lineage: b.lineage, inventory: b.inventory, listening: &listening{},
			orphans: &orphanEnds{inventory: b.inventory, endings: b.endings},
		}}
		cell := Cell{ID: "c", Phase: apiv1.Ready, Standby: tc.standby, Instance: &cloud.Instance{ID: "i"}}
		if tc.pod != "" {
			cell.Pod = ref(tc.pod)
		}
		e := b.stored(cell)
		e.loaded, e.ending = tc.loaded, tc.ending
		if tc.listed {
			b.listed(snapshot{began: b.clock.Now()})
			b.lineage.looked = true
		}
		ready, again, err := s.prepare(t.Context(), e)
		if err != nil || ready != tc.ready || !ready && again != time.Second {
			t.Errorf("%s: ready %t, again after %s (%v)", name, ready, again, err)
		}
	}
}
