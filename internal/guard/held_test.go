package guard

import (
	"testing"
	"time"
)

func TestAPersonLetsPassOnceWhatIsHeldBackNow(t *testing.T) {
	w := newWorld(Limit{Window: time.Minute})
	e := lost(3)
	w.admitted(e[:2], 100)
	held := w.Held()
	if len(held) != 2 || held[0].Instance != "i-000" || held[0].Why != "silent" || held[0].Reason != ByLimit || held[0].Text == "" {
		t.Fatalf("held back: %+v", held)
	}
	seen := w.clock.Now()
	w.pass(time.Second)
	w.admitted(e[2:], 100)
	if let := w.Allow(seen); len(let) != 2 || len(w.Held()) != 1 {
		t.Errorf("let pass: %+v, held back still: %+v", let, w.Held())
	}
	if w.admitted(e[:2], 100) != 2 || w.admitted(e[2:], 100) != 0 {
		t.Error("want those to pass that the person has seen, and no other")
	}
	w.Forget("i-000")
	if w.admitted(e[:1], 100) != 0 {
		t.Error("it passes a second time")
	}
}

func TestNobodyIsHeldBackAnyMoreOfWhomNobodyAsks(t *testing.T) {
	w := newWorld(Limit{Window: time.Hour})
	e := lost(1)
	w.admitted(e, 0)
	since := w.clock.Now()
	w.pass(heldFor)
	w.admitted(e, 0)
	if held := w.Held(); len(held) != 1 || !held[0].Since.Equal(since) || !w.Holds("i-000") {
		t.Errorf("held back: %+v; want one, since %v", held, since)
	}
	w.Allow(w.clock.Now())
	w.pass(heldFor + 1)
	if w.admitted(e, 0) != 0 {
		t.Error("it passes for what a person has said long ago")
	}
	w.pass(heldFor + 1)
	if len(w.Held()) != 0 || w.Holds("i-000") {
		t.Error("it is still shown")
	}
	if w.admitted(e, 0) != 0 {
		t.Error("it passes for what a person has said of another time")
	}
}

func TestToAskOfOneThatIsHeldBackCostsTheSameHoweverManyAre(t *testing.T) {
	w := newWorld(Limit{Window: time.Hour})
	w.admitted(lost(1000), 0)
	if n := testing.AllocsPerRun(10, func() { w.Holds("i-500") }); n != 0 || !w.Holds("i-500") || w.Holds("other") {
		t.Errorf("%v allocations; held back %t, another %t", n, w.Holds("i-500"), w.Holds("other"))
	}
}
