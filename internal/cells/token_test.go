package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func TestATokenIsSpentOnOneKeyAndInTime(t *testing.T) {
	b := newBench(t)
	s := &tokens{records: b.records, bootTimes: &bootTimes{generation: b.generation, loop: b.loop}}
	cell := Cell{
		ID: "c", Pod: ref("a"), Phase: apiv1.Booting, Credentials: Credentials{Token: "t"},
		Instance: &cloud.Instance{ID: "i", Launched: b.clock.Now()}, Offerings: []Offering{{BootTimeout: time.Minute}},
	}
	e := b.stored(cell)
	cell.ID, cell.Pod = "late", ref("b")
	late := b.stored(cell)
	for _, tc := range []struct {
		after time.Duration
		e     *entry
		key   string
		ok    bool
	}{
		{0, e, "key", true},
		{0, e, "key", true}, // after a crash in between
		{0, e, "other", false},
		{time.Minute, late, "key", false},
		{0, e, "key", true}, // it has joined, and comes back
	} {
		b.clock.Step(tc.after)
		if err := s.spend(t.Context(), tc.e, tc.key); (err == nil) != tc.ok {
			t.Errorf("cell %s with key %q: %v", tc.e.id, tc.key, err)
		}
	}
	if e.cell().KeyHash != "key" || late.cell().KeyHash != "" {
		t.Errorf("stored are %q and %q", e.cell().KeyHash, late.cell().KeyHash)
	}
}
