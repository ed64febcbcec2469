package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// prepared returns preparations.
func (b *bench) prepared(list ...preparation) preparations {
	return preparations{table: b.table, list: list}
}

func TestAReadyCellWaitsUntilItIsTheOnlyOneToRunItsPod(t *testing.T) {
	for name, tc := range map[string]struct {
		pod, standby string
		loaded       bool // by an earlier process
		ending       string
		listed       bool // the cloud's list has come
		want         progress
	}{
		"a standby cell is given to a pod":             {"a", "pool", false, "", true, done},
		"one is given, and nothing is listed yet":      {"a", "pool", false, "", false, waitFor("", time.Second)},
		"one is given, and is to end":                  {"a", "pool", false, "why", false, leave},
		"one is not given yet":                         {"", "pool", false, "", false, done},
		"the cell was launched for its pod":            {"a", "", false, "", false, done},
		"an earlier Kip's, and nothing is listed yet":  {"a", "", true, "", false, waitFor("", time.Second)},
		"an earlier Kip's, and all is listed":          {"a", "", true, "", true, done},
		"an earlier Kip's is to end, whatever it runs": {"a", "", true, "why", false, leave},
	} {
		b := newBench(t)
		s := b.prepared(&bindDuplicates{generation: b.generation, inventory: b.inventory, duplicateWaits: b.duplicateWaits()})
		cell := Cell{ID: "c", Phase: apiv1.Ready, OfPool: OfPool{Standby: tc.standby}, Instance: &cloud.Instance{ID: "i"}}
		if tc.pod != "" {
			cell.Pod = ref(tc.pod)
		}
		e := b.stored(cell)
		e.loaded, e.ending = tc.loaded, tc.ending
		if tc.listed {
			b.listed(snapshot{began: b.clock.Now()})
			b.generation.compared = true
		}
		if got, err := bare(s.prepare(t.Context(), e)); err != nil || got != tc.want {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, tc.want)
		}
	}
}
