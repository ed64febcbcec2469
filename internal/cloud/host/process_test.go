package host

import (
	"errors"
	"os"
	"testing"
)

func TestStartTimeIsFoundBehindAnyCommandName(t *testing.T) {
	rest := " S 1 2 3 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 4 5"
	for _, command := range []string{"(sh)", "(a b)", "(x) R 1 (y)", "())"} {
		got, err := startTime([]byte("12 " + command + rest))
		if err != nil || got != 98765 {
			t.Errorf("%s: %d, %v", command, got, err)
		}
	}
	for _, bad := range []string{"", "12 sh S", "12 (sh) S 1 2"} {
		if got, err := startTime([]byte(bad)); err == nil {
			t.Errorf("%q: %d, want an error", bad, got)
		}
	}
}

func TestProcessIsOnlyItself(t *testing.T) {
	self, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h, err := self.Open()
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	for what, p := range map[string]Process{
		"unset":           {},
		"started earlier": {PID: self.PID, Started: self.Started - 1, BootID: self.BootID},
		"of another boot": {PID: self.PID, Started: self.Started, BootID: "other"},
	} {
		if _, err := p.Open(); !errors.Is(err, ErrGone) {
			t.Errorf("%s: error is %v", what, err)
		}
	}
}
