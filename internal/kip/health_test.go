package kip

import (
	"errors"
	"testing"
)

func TestAProcessThatStandsByIsReadyAndALeaderWhenItsChecksHold(t *testing.T) {
	k := &process{}
	broken := errors.New("broken")
	asked := 0
	holds := func(*leading) error { asked++; return broken }
	if err := k.ready(holds); err != nil || asked != 0 {
		t.Errorf("one that stands by: %v, after %d questions", err, asked)
	}
	k.elected.Store(true)
	if err := k.ready(holds); err == nil || asked != 0 {
		t.Errorf("one whose work has not begun: %v, after %d questions", err, asked)
	}
	k.leading.Store(&leading{process: k})
	if err := k.ready(holds); !errors.Is(err, broken) {
		t.Errorf("one that leads: %v, want what its check says", err)
	}
	names := map[string]bool{"store": true}
	for _, c := range checksOfLeader {
		if names[c.name] || c.holds == nil {
			t.Errorf("check %q is there twice, or asks nothing", c.name)
		}
		names[c.name] = true
	}
}
