package cells

import (
	"testing"

	"github.com/elotl/kip/internal/cloud"
)

func TestConsequencesWakeEndAndReport(t *testing.T) {
	b := newBench(t)
	s := b.listing().comparing.consequences
	gone := b.booting("gone")
	stray := cloud.Instance{ID: "i"}
	s.shown(snapshot{}, findings{wake: []string{"a", "b"}})
	if woken := b.woken(); len(woken) != 2 {
		t.Errorf("woken are %v", woken)
	}
	f := findings{absent: []absent{{cell: gone.cell(), due: true}}, newOrphans: 2, dueOrphans: []cloud.Instance{stray}}
	seen := snapshot{ended: map[string]bool{"i-gone": true}}
	s.described(t.Context(), seen, f, map[string]cloud.State{"i-gone": cloud.Gone}, map[string]error{"i-gone": cloud.ErrCapacity})
	if _, cause := b.table.ending(gone); cause != CauseInterrupted || b.found != 2 || b.terminations.byInstance["i"] == nil {
		t.Errorf("its cell ends for %q, found %d, ends %v", cause, b.found, b.terminations.byInstance)
	}
	b.terminations.byInstance["i"].sending = false
	if s.shown(snapshot{}, findings{}); b.terminations.byInstance["i"] != nil {
		t.Error("the end of one that is gone is not forgotten")
	}
}
