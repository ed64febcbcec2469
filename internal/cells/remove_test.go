package cells

import (
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

// removing returns what removes the records of cells.
func (b *bench) removing() *removals {
	return &removals{table: b.table, loop: b.loop, records: b.records, connections: b.connecting()}
}

func TestARecordThatIsRemovedSaysWhyTheCellIsGone(t *testing.T) {
	for name, tc := range map[string]struct {
		ending Cause // of the cell
		stored Cause
		want   Cause
	}{
		"nobody has asked for it": {"", "", CauseOther},
		"it is to end":            {CausePodDeleted, "", CausePodDeleted},
		"its record says why":     {CausePodDeleted, CauseLost, CauseLost},
	} {
		b := newBench(t)
		e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Terminating, Credentials: Credentials{Token: "t"}, Cause: tc.stored})
		b.linked(e)
		dropped := false
		e.async.now = &asyncOp{what: drains, cancel: func() { dropped = true }}
		if tc.ending != "" {
			b.end(e, tc.ending)
		}
		if err := b.removing().remove(t.Context(), e, "it is gone"); err != nil {
			t.Fatal(err)
		}
		got := e.cell()
		if got.Phase != apiv1.Gone || got.Reason != "it is gone" || got.Cause != tc.want || got.Token != "" {
			t.Errorf("%s: %s for %q, %s", name, got.Phase, got.Reason, got.Cause)
		}
		revision, err := b.records.store.Get(t.Context(), keyPrefix+"c", new(Cell))
		if revision != 0 || err != nil || e.session().opened() || !dropped {
			t.Errorf("%s: it has a record (%v), is connected %t, or something is still done for it", name, err, e.session().opened())
		}
		if len(b.shown) != 1 || !b.shown[0].StepTime(apiv1.StepTerminated).Equal(b.clock.Now()) {
			t.Errorf("%s: observers know of %v", name, b.shown)
		}
	}
}
