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

func TestWhatTheCloudSaysOfALostInstanceIsItsCellsCause(t *testing.T) {
	for name, tc := range map[string]struct {
		fault error
		cause Cause
		why   string
	}{
		"nothing":       {nil, CauseLost, "instance i is no longer in the cloud's list"},
		"no capacity":   {cloud.ErrCapacity, CauseInterrupted, "the cloud has ended instance i: " + cloud.ErrCapacity.Error()},
		"no quota":      {cloud.ErrQuota, CauseInterrupted, "the cloud has ended instance i: " + cloud.ErrQuota.Error()},
		"it cannot run": {cloud.ErrUnfit, CauseUnfit, "the cloud has ended instance i: " + cloud.ErrUnfit.Error()},
		"anything else": {cloud.ErrRefused, CauseLost, "the cloud has ended instance i: " + cloud.ErrRefused.Error()},
	} {
		a := absent{cell: &Cell{Instance: &cloud.Instance{ID: "i"}}}
		if got := signOf(a, true, tc.fault); got.cause != tc.cause || got.why != tc.why || !got.sure {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestCellsAreLostForWhatALookShows(t *testing.T) {
	b := newBench(t)
	s := b.lost()
	booting := func(id string) *entry {
		return b.stored(Cell{ID: id, Pod: ref("pod of " + id), Phase: apiv1.Booting, Instance: &cloud.Instance{ID: "i-" + id}})
	}
	young, there, gone, stopped := booting("young"), booting("there"), booting("gone"), booting("stopped")
	f := findings{
		absent:  []absent{{cell: young.cell()}, {cell: there.cell(), due: true}, {cell: gone.cell(), due: true}},
		stopped: []*Cell{stopped.cell()},
	}
	seen := snapshot{began: b.clock.Now(), ended: map[string]bool{"i-gone": true, "i-young": true}}
	s.endLost(t.Context(), seen, f, map[string]cloud.State{"i-gone": cloud.Gone}, nil)
	for e, ends := range map[*entry]bool{young: false, there: false, gone: true, stopped: true} {
		if why, _ := b.table.ending(e); (why != "") != ends {
			t.Errorf("cell %s ends for %q", e.id, why)
		}
	}
	if n := len(b.woken()); n != 4 {
		t.Errorf("%d cells are woken, want all", n)
	}
}

func TestWhatAnotherHasLaunchedIsToldOnceAndLeft(t *testing.T) {
	s := &foreign{log: newBench(t).loop.log, owner: "me"}
	at := func(id, token string, state cloud.State) cloud.Instance {
		return cloud.Instance{ID: id, State: state, Origin: cloud.Origin{Token: token}, Launched: time.Unix(1, 0)}
	}
	list := []cloud.Instance{
		at("own", "x", cloud.Running), at("theirs", "x", cloud.Running), at("ends", "x", cloud.Terminating), at("ours", "", cloud.Running),
	}
	cells := []known{{cell: &Cell{Instance: &cloud.Instance{ID: "own"}}}, {cell: &Cell{}}}
	for range 2 {
		left := s.leave(list, cells)
		if len(left) != 3 || left[1].ID != "ends" || !s.reported["theirs"] || len(s.reported) != 1 {
			t.Errorf("left are %v, told of %v", left, s.reported)
		}
	}
	if s.leave(nil, cells); len(s.reported) != 0 {
		t.Error("one that is gone is remembered")
	}
}
