package cells

import (
	"slices"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
)

func TestACellBeginsToEndOnceAndItsOwnerIsToldOnce(t *testing.T) {
	b := newBench(t)
	lost := cellEnd{CauseLost, "it is lost", events.NewCellLost("c", "it is lost")}
	deleted := cellEnd{cause: CausePodDeleted, evidence: "its pod is deleted"}
	for name, tc := range map[string]struct {
		ends []cellEnd
		said int
	}{
		"told":   {[]cellEnd{lost, deleted}, 1},
		"untold": {[]cellEnd{deleted, lost}, 0},
	} {
		b.said = nil
		e := b.stored(Cell{ID: name, Pod: ref(name), Phase: apiv1.Bound})
		b.holds.cells.of(e).why = "it was heard"
		for _, end := range tc.ends {
			b.ends.begin(e, end)
		}
		why, cause := b.table.ending(e)
		b.table.mu.Lock()
		held := b.holds.whyLocked(e)
		b.table.mu.Unlock()
		if why != tc.ends[0].evidence || cause != tc.ends[0].cause || held != "" {
			t.Errorf("%s: it ends for %q (%s), held back: %q", name, why, cause, held)
		}
		if woken := b.woken(); len(b.said) != tc.said || !slices.Equal(woken, []string{name}) {
			t.Errorf("%s: said %v, woken %v", name, b.said, woken)
		}
	}
}
