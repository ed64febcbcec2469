package guard

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func TestAnEndThatIsHeldBackHoldsUpNoOtherOfTheCall(t *testing.T) {
	w := newWorld(Limit{})
	if w.admitted(lost(10), 10) != 10 {
		t.Fatal("not all end")
	}
	results := w.machines.Terminate(t.Context(), "i-000", "i-010", "i-001")
	_, isHeld := errors.AsType[*HeldError](results[1].Err)
	if results[0].Err != nil || !isHeld || results[2].Err != nil {
		t.Errorf("answered %v", results)
	}
}

func TestWhoeverTerminatesWithoutAskingIsHeldToTheLimit(t *testing.T) {
	w := newWorld(Limit{Least: 1, Window: time.Minute})
	if err := w.Admit(t.Context(), End{Instance: "asked", Ground: Requested}, 0); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"first", "second", "asked"} {
		err := w.machines.Terminate(t.Context(), id).Err()
		held, isHeld := errors.AsType[*HeldError](err)
		if isHeld != (id == "second") || isHeld && held.Reason != ByLimit || !isHeld && err != nil {
			t.Errorf("%s ended with %v", id, err)
		}
	}
	if !slices.Equal(w.cloud.ids, []string{"first", "asked"}) || len(w.Held()) != 1 {
		t.Errorf("ended %v, held back %v", w.cloud.ids, w.Held())
	}
}
