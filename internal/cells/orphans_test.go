package cells

import (
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

func TestAStrayIsEndedAndForgottenWhenItIsGone(t *testing.T) {
	b := newBench(t)
	s, strays := b.ending()
	stray := cloud.Instance{ID: "i", Tags: map[string]string{cloud.TagNamespace: "ns", cloud.TagPod: "a", cloud.TagPodUID: "uid"}}
	strays.terminate(stray)
	end := b.terminations.byInstance["i"]
	if strays.terminate(stray); len(b.terminations.queued.items) != 1 || end.end.Ground != guard.Unrequested || end.end.Pod.Name != "a" {
		t.Fatalf("queued are %d ends, of %+v", len(b.terminations.queued.items), end.end)
	}
	seen := snapshot{byID: map[string]cloud.Instance{"i": stray}}
	if strays.forget(snapshot{}); b.terminations.byInstance["i"] == nil {
		t.Error("one for which a call is being made is forgotten")
	}
	if s.note(t.Context(), end, nil); len(b.orphans) != 1 || b.orphans[0] != nil {
		t.Errorf("observers know of %v", b.orphans)
	}
	b.clock.Step(terminateAgain + time.Second)
	if strays.terminate(stray); end.sending {
		t.Error("one that is not seen any more is asked for again")
	}
	b.listed(snapshot{began: b.clock.Now(), byID: seen.byID})
	if strays.terminate(stray); !end.sending {
		t.Error("one that stays is not asked for again")
	}
	s.note(t.Context(), end, nil)
	if strays.forget(seen); b.terminations.byInstance["i"] == nil {
		t.Error("one that is seen is forgotten")
	}
	if strays.forget(snapshot{}); b.terminations.byInstance["i"] != nil {
		t.Error("one that is gone is not forgotten")
	}
}
