package host

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/cloud"
)

func TestInterruptionsAreAnnouncedOnce(t *testing.T) {
	const a, b, empty, bad, gone = "i-000000000000000a", "i-000000000000000b", "i-000000000000000c", "i-000000000000000d", "i-000000000000000e"
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	clk := clocktesting.NewFakeClock(now)
	dir := t.TempDir()
	cfg := Config{StateDir: dir, Clock: clk, Log: slog.New(slog.DiscardHandler)}
	if err := os.Mkdir(cfg.interruptionsDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	open := func() *Cloud {
		c := &Cloud{cfg: cfg, machines: map[string]*machine{}}
		for _, id := range []string{a, b, empty, bad} {
			// Pending: none is taken.
			c.machines[id] = &machine{id: id, rec: record{Instance: cloud.Instance{ID: id, State: cloud.Pending}}}
		}
		return c
	}
	file := func(id string) string { return filepath.Join(cfg.interruptionsDir(), id) }
	write := func(id, text string) {
		t.Helper()
		if err := os.WriteFile(file(id), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file(id), time.Time{}, clk.Now()); err != nil {
			t.Fatal(err)
		}
	}
	c, seen := open(), map[string]string{}
	look := func(want ...cloud.Interruption) {
		t.Helper()
		var got []cloud.Interruption
		if err := c.interrupt(seen, func(i cloud.Interruption) {
			i.At = i.At.UTC() // comparable
			got = append(got, i)
		}); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("announced %v, want %v", got, want)
		}
	}
	at := func(id string, d time.Duration) cloud.Interruption {
		return cloud.Interruption{InstanceID: id, At: now.Add(d), Reason: reason}
	}

	look()
	write(a, "2026-01-31T12:00:30Z\n")
	write("."+a+".new", "2026-01-31T12:00:30Z") // not yet renamed
	write(empty, "")
	write(bad, "tomorrow")
	write(gone, "")
	look(at(a, 30*time.Second))
	look()
	if _, err := os.Stat(file(gone)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a machine that is not there: %v", err)
	}
	clk.Step(time.Second)
	look(at(empty, DefaultNotice))
	clk.Step(time.Minute) // also past the time of a
	look()
	write(b, "2026-01-31T13:01:00+01:00")
	write(bad, "2026-01-31T12:05:00Z")
	look(at(b, time.Minute), at(bad, 5*time.Minute))
	// Taken back and said again.
	if err := os.Remove(file(a)); err != nil {
		t.Fatal(err)
	}
	look()
	write(a, "2026-01-31T12:00:30Z")
	look(at(a, 30*time.Second))
	// A Kip that is started anew says all again, at the times that were said.
	c, seen = open(), map[string]string{}
	var ids []string
	if err := c.interrupt(seen, func(i cloud.Interruption) { ids = append(ids, i.InstanceID) }); err != nil {
		t.Fatal(err)
	}
	if want := []string{a, b, empty, bad}; !reflect.DeepEqual(ids, want) {
		t.Errorf("announced after a restart: %q, want %q", ids, want)
	}
}

func TestInterruptRefusesWhatIsNotThere(t *testing.T) {
	cfg := Config{StateDir: t.TempDir()}
	for id, want := range map[string]string{
		"cell-1":             "not an instance ID",
		"../x":               "not an instance ID",
		"i-000000000000000a": "there is no such machine",
	} {
		if err := Interrupt(cfg, id, time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want one with %q", id, err, want)
		}
	}
}
