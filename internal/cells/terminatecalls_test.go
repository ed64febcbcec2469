package cells

import (
	"errors"
	"maps"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

func TestEachInstanceIsTerminatedThatTheGuardAdmits(t *testing.T) {
	b := newBench(t)
	answers, orphans := b.ending()
	s := &terminateCalls{
		loop: b.loop, calls: b.calls, guard: b.guard, holds: b.holds, terminations: b.terminations, answers: answers,
	}
	b.cloud.set(func() { b.cloud.keep = map[string]error{"i-kept": errors.New("protected")} })
	for _, id := range []string{"ended", "kept", "heard"} {
		e := b.stored(Cell{ID: id, Pod: ref(id), Phase: apiv1.Terminating, Cause: CausePodEnded, Instance: &cloud.Instance{ID: "i-" + id}})
		end := guardEnd(e.cell(), "why")
		if id == "heard" {
			end.Ground, end.LastHeartbeat = guard.Unrequested, b.clock.Now()
		}
		b.terminations.terminate(end, e, snapshot{})
	}
	orphans.terminate(cloud.Instance{ID: "i-orphan"})
	s.callAll(t.Context(), b.terminations.queued.items)
	b.loop.running.Wait()
	if want := map[string]int{"i-ended": 1, "i-kept": 1, "i-orphan": 1}; !maps.Equal(b.cloud.terminated, want) {
		t.Errorf("terminated are %v, want %v", b.cloud.terminated, want)
	}
	for id, want := range map[string]struct{ accepted, waits bool }{
		"i-ended": {true, false}, "i-kept": {false, true}, "i-heard": {false, true}, "i-orphan": {true, false},
	} {
		way := b.terminations.byInstance[id]
		if way.sending || !way.accepted.IsZero() != want.accepted || way.next.After(b.clock.Now()) != want.waits {
			t.Errorf("%s: %+v", id, way)
		}
	}
	if len(b.said) != 2 || len(b.orphans) != 1 || len(b.woken()) != 3 || !b.asked() {
		t.Errorf("said %v, orphans ended %d", b.said, len(b.orphans))
	}
}
