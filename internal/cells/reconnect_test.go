package cells

import (
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func TestAReadyCellIsConnectedUnlessItLeaves(t *testing.T) {
	for name, tc := range map[string]struct {
		ends, stopped bool
		want          progress
	}{
		"it stays":      {false, false, done},
		"it is to end":  {true, false, leave},
		"it is stopped": {false, true, leave},
	} {
		b := newBench(t)
		s := b.prepared(unlessStopped{}, &reconnecting{connections: b.connecting()})
		e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Ready, OfPool: OfPool{Stopped: tc.stopped}, Instance: &cloud.Instance{ID: "i"}})
		if tc.ends {
			b.end(e, CauseLost)
		}
		got, err := bare(s.prepare(t.Context(), e))
		if got != tc.want || err != nil || e.session().opened() != (tc.want == done) {
			t.Errorf("%s: %+v (%v), connecting %t", name, got, err, e.session().opened())
		}
	}
}
