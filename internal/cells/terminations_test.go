package cells

import (
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
)

func TestAnEndIsAskedForOnceAndAgainWhileTheInstanceStays(t *testing.T) {
	now := time.Unix(1e9, 0)
	there := map[string]cloud.Instance{"i": {ID: "i"}}
	for name, tc := range map[string]struct {
		t    termination
		seen snapshot
		due  bool
	}{
		"nobody has asked":                {termination{}, snapshot{}, true},
		"it is being asked":               {termination{sending: true}, snapshot{}, false},
		"it has failed a moment ago":      {termination{next: now.Add(time.Second)}, snapshot{}, false},
		"it has failed a while ago":       {termination{next: now}, snapshot{}, true},
		"it is accepted":                  {termination{accepted: now}, snapshot{began: now.Add(time.Minute), byID: there}, false},
		"it is accepted, and stays":       {termination{accepted: now}, snapshot{began: now.Add(terminateAgain + 1), byID: there}, true},
		"it is accepted, and is not seen": {termination{accepted: now}, snapshot{began: now.Add(terminateAgain + 1)}, false},
	} {
		tc.t.end.Instance = "i"
		if due := tc.t.dueLocked(now, tc.seen); due != tc.due {
			t.Errorf("%s: due %t", name, due)
		}
	}
}

// ending returns the parts that end instances, on a bench.
func (b *bench) ending() (*terminateAnswers, *orphanTerminations) {
	routes := &routes{table: b.table, loop: b.loop, calls: b.calls}
	return &terminateAnswers{
		loop: b.loop, terminations: b.terminations, inventory: b.inventory, routes: routes, events: b.events, observers: b.observers,
	}, &orphanTerminations{inventory: b.inventory, terminations: b.terminations}
}

func TestTheAnswerToAnEndSaysWhenToAskAgain(t *testing.T) {
	b := newBench(t)
	s, _ := b.ending()
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Terminating, Instance: &cloud.Instance{ID: "i"}})
	ask := func() time.Duration {
		_, again := b.terminations.terminate(guardEnd(e.cell(), ""), e, snapshot{})
		return again
	}
	ask()
	end := b.terminations.byInstance["i"]
	for _, tc := range []struct {
		err   error
		again time.Duration
		said  int // in all
	}{
		{errors.New("no answer"), time.Second, 1},
		{errors.New("no answer"), 2 * time.Second, 1},
		{&cloud.Error{Cause: cloud.ErrThrottled, Err: errors.New("busy"), RetryAfter: 30 * time.Second}, 30 * time.Second, 2},
		{&guard.HeldError{Reason: guard.ByStore, Text: "held", After: time.Hour}, idlePoll, 3},
	} {
		b.woken()
		if !end.sending || !b.terminations.sending("i") {
			t.Fatalf("before %v nothing is being asked", tc.err)
		}
		s.note(t.Context(), end, tc.err)
		if again := ask(); again != tc.again || b.terminations.sending("i") || len(b.said) != tc.said {
			t.Errorf("%v: again after %s, sending %t, said %v", tc.err, again, b.terminations.sending("i"), b.said)
		}
		if !slices.Equal(b.woken(), []string{"c"}) || !b.asked() {
			t.Errorf("%v: the cell is not woken, or no snapshot is asked for", tc.err)
		}
		b.clock.Step(tc.again)
		ask()
	}
	s.note(t.Context(), end, nil)
	if !b.terminations.accepted("i").Equal(b.clock.Now()) || len(b.orphans) != 0 {
		t.Error("it is not noted that the cloud has accepted the end")
	}
	b.terminations.forget("i")
	if !b.terminations.accepted("i").IsZero() || b.terminations.sending("i") {
		t.Error("an end that is forgotten goes on")
	}
}

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
	if strays.forget(seen); b.terminations.byInstance["i"] == nil {
		t.Error("one that is seen is forgotten")
	}
	if strays.forget(snapshot{}); b.terminations.byInstance["i"] != nil {
		t.Error("one that is gone is not forgotten")
	}
}

func TestACellIsGoneWhenItsInstanceHasSurelyEnded(t *testing.T) {
	b := newBench(t)
	outcomes, _ := b.ending()
	connections := &connections{table: b.table}
	removals := &removals{table: b.table, loop: b.loop, records: b.records, connections: connections}
	s := &terminating{
		inventory: b.inventory, terminations: b.terminations, connections: connections, routes: outcomes.routes, removals: removals,
	}
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Terminating, Reason: "why", Instance: &cloud.Instance{ID: "i"}})
	ended := map[string]bool{"i": true}
	for _, tc := range []struct {
		name     string
		accepted bool
		seen     snapshot
		phase    apiv1.Phase
	}{
		{"nobody has answered", false, snapshot{ended: ended}, apiv1.Terminating},
		{"the snapshot began before", true, snapshot{began: b.clock.Now(), ended: ended}, apiv1.Terminating},
		{"the snapshot is not sure", true, snapshot{began: b.clock.Now().Add(time.Second)}, apiv1.Terminating},
		{"the snapshot is sure", true, snapshot{began: b.clock.Now().Add(time.Second), ended: ended}, apiv1.Gone},
	} {
		if tc.accepted && b.terminations.accepted("i").IsZero() {
			outcomes.note(t.Context(), b.terminations.byInstance["i"], nil)
		}
		b.listed(tc.seen)
		again, err := after(s.Step(t.Context(), e))
		if got := e.cell(); err != nil || got.Phase != tc.phase || (again == 0) != (tc.phase == apiv1.Gone) {
			t.Errorf("%s: the cell is %s, again after %s (%v)", tc.name, got.Phase, again, err)
		}
	}
	if e.cell().Reason != "why" || b.table.find("c") != nil || len(b.terminations.byInstance) != 0 {
		t.Errorf("it is gone for %q; found %t", e.cell().Reason, b.table.find("c") != nil)
	}
}

func TestAnAbandonedLaunchIsGoneAfterTwoCompleteLooks(t *testing.T) {
	b := newBench(t)
	s := &abandoned{
		loop: b.loop, records: b.records, inventory: b.inventory, listLag: time.Minute,
		removals: &removals{table: b.table, loop: b.loop, records: b.records, connections: &connections{table: b.table}},
	}
	abandoned := func(id string) *entry {
		cell := Cell{ID: id, Pod: ref(id), Phase: apiv1.Terminating, Offerings: []Offering{{Zone: "z"}}}
		cell.step(apiv1.StepEnded, b.clock.Now())
		return b.stored(cell)
	}
	e, ended := abandoned("c"), b.clock.Now()
	for _, tc := range []struct {
		name string
		seen snapshot
		gone bool
	}{
		{"too soon", snapshot{began: ended.Add(time.Minute)}, false},
		{"another zone", snapshot{began: ended.Add(2 * time.Minute), missing: []string{"z"}}, false},
		{"others are not shown", snapshot{began: ended.Add(2 * time.Minute), lacks: true}, false},
		{"the first", snapshot{began: ended.Add(2 * time.Minute)}, false},
		{"the same", snapshot{began: ended.Add(2 * time.Minute)}, false},
		{"the second", snapshot{began: ended.Add(3 * time.Minute)}, true},
	} {
		if _, err := s.adoptOrRemove(t.Context(), e, tc.seen); err != nil || (e.cell().Phase == apiv1.Gone) != tc.gone {
			t.Errorf("%s: it is %s (%v)", tc.name, e.cell().Phase, err)
		}
	}
	e = abandoned("d")
	seen := snapshot{byCell: map[string]string{"d": "i"}, byID: map[string]cloud.Instance{"i": {ID: "i"}}}
	if _, err := s.adoptOrRemove(t.Context(), e, seen); err != nil || e.cell().Instance == nil || e.cell().Phase != apiv1.Terminating {
		t.Errorf("one that is found is %s with %v (%v)", e.cell().Phase, e.cell().Instance, err)
	}
}
