package cells

import (
	"net/netip"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

func TestALookIsComparedWithCellsAsTheyAreNow(t *testing.T) {
	b := newBench(t)
	s := &knownCells{table: b.table, loop: b.loop, calls: b.calls, terminations: b.terminations}
	addresses := cloud.Instance{ManagementIP: netip.MustParseAddr("10.0.0.2"), PodIP: netip.MustParseAddr("10.0.128.2")}
	instance := func(id string, i cloud.Instance) *cloud.Instance {
		i.ID = id
		return &i
	}
	now := b.clock.Now()
	well := b.stored(Cell{ID: "well", Pod: ref("a"), Phase: apiv1.Bound, Instance: instance("i-well", addresses)})
	well.open(&modelLink{connected: true, heard: now}, nil, time.Time{})
	silent := b.stored(Cell{ID: "silent", Pod: ref("b"), Phase: apiv1.Bound, Instance: instance("i-silent", addresses)})
	silent.open(&modelLink{heard: now.Add(-guard.Fresh)}, nil, time.Time{})
	b.stored(Cell{ID: "young", Pod: ref("c"), Phase: apiv1.Booting, Instance: instance("i-young", cloud.Instance{})})
	b.stored(Cell{ID: "asked", Pod: ref("d"), Phase: apiv1.Requested})
	ends := b.stored(Cell{ID: "ends", Pod: ref("e"), Phase: apiv1.Terminating, Instance: instance("i-ends", addresses)})
	b.terminations.terminate(guardEnd(ends.cell(), ""), ends, snapshot{})
	b.terminations.byInstance["i-ends"].accepted = now
	want := map[string]known{
		"well":   {heard: true, addressed: true},
		"silent": {cutOff: true, addressed: true},
		"young":  {},
		"asked":  {addressed: true}, // it waits for none
		"ends":   {addressed: true, terminated: now},
	}
	for _, got := range s.now() {
		id := got.cell.ID
		if got.cell = nil; got != want[id] {
			t.Errorf("%s: %+v, want %+v", id, got, want[id])
		}
		delete(want, id)
	}
	if len(want) > 0 {
		t.Errorf("not compared: %v", want)
	}
}
