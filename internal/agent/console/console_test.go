package console

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestALineAStep(t *testing.T) {
	var out strings.Builder
	at := 1500 * time.Millisecond
	c := &Console{now: func() time.Duration { return at }, out: &out}
	c.Say("kernel %s", "6.12")
	if err := c.Step("mount the root", func() error { at += 20 * time.Millisecond; return nil }); err != nil {
		t.Error(err)
	}
	broken := errors.New("no disk")
	if err := c.Step("grow", func() error { return broken }); !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "grow: ") {
		t.Errorf("a step that fails: %v", err)
	}
	want := "[    1.500000] kip: kernel 6.12\r\n[    1.520000] kip: mount the root (0.020 s)\r\n" +
		"[    1.520000] kip: grow: FAILED after 0.000 s: no disk\r\n"
	if out.String() != want {
		t.Errorf("the console has %q, want %q", out.String(), want)
	}
	if a, b := SinceBoot(), SinceBoot(); a <= 0 || b < a {
		t.Errorf("since boot %v, then %v", a, b)
	}
}
