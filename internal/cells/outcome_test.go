package cells

import (
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestAnUnknownVerdictChangesNoCell(t *testing.T) {
	b := newBench(t)
	group := []*entry{b.stored(Cell{ID: "c", Phase: apiv1.Launching}), b.stored(Cell{ID: "d", Phase: apiv1.Launching})}
	l := &launch{group: group}
	some := append(outcomesOf(group[:1], isForbidden, nil), outcomesOf(group[1:], "unheard of", nil)...)
	if err := b.recording().record(t.Context(), l, some); err == nil {
		t.Error("it is stored")
	}
	for _, e := range group {
		if cell := e.cell(); cell.Phase != apiv1.Launching || cell.Cause != "" || len(b.said) > 0 {
			t.Errorf("cell %s is %s for %q, said %v", e.id, cell.Phase, cell.Cause, b.said)
		}
	}
}
