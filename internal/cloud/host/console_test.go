package host

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cloud"
)

func TestConsoleKeepsItsEndAndGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	write := func(s string) {
		if _, err := writer.WriteString(s); err != nil {
			t.Fatal(err)
		}
		if err := boundConsole(path); err != nil {
			t.Fatal(err)
		}
	}
	write("short")
	if b, err := os.ReadFile(path); err != nil || string(b) != "short" {
		t.Fatalf("a short log became %q, %v", b, err)
	}
	write(strings.Repeat("x", maxConsole) + "the end")
	write(", and on")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != keptConsole+len(", and on") || !strings.HasSuffix(string(b), "xthe end, and on") {
		t.Errorf("%d bytes, ending in %q", len(b), b[max(0, len(b)-20):])
	}
	if err := boundConsole(path + "-of-a-machine-that-is-gone"); err != nil {
		t.Error(err)
	}
}

func TestOnlyAnInstanceThatIsThereHasAConsole(t *testing.T) {
	c := &Cloud{cfg: Config{StateDir: t.TempDir()}}
	const id = "i-0123456789abcdef"
	if text, err := c.Console(t.Context(), id); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("an unknown instance: %q, %v", text, err)
	}
	if _, err := c.Console(t.Context(), "../"+id); err == nil {
		t.Error("a path is an instance")
	}
	if err := os.MkdirAll(c.cfg.MachineDir(id), 0o700); err != nil {
		t.Fatal(err)
	}
	if text, err := c.Console(t.Context(), id); err != nil || len(text) > 0 {
		t.Errorf("one that has written nothing: %q, %v", text, err)
	}
	if err := os.WriteFile(c.cfg.consolePath(id), []byte(strings.Repeat("x", keptConsole)+"the end"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := c.Console(t.Context(), id); err != nil || len(text) != keptConsole || !strings.HasSuffix(string(text), "xthe end") {
		t.Errorf("a long one: %d bytes, %v", len(text), err)
	}
}

func TestTheConsolesOfTheMachinesThatEndedLastAreKept(t *testing.T) {
	c := &Cloud{cfg: Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}}
	id := func(n int) string { return fmt.Sprintf("i-%016x", n) }
	for n := range keptEnded + 2 {
		m := &machine{id: id(n)}
		m.rec.Instance.State = cloud.Terminating
		if err := os.MkdirAll(c.cfg.MachineDir(m.id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.cfg.consolePath(m.id), []byte(m.id+" ends"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.keepConsole(m)
		if err := os.RemoveAll(c.cfg.MachineDir(m.id)); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[int]string{2: id(2) + " ends", keptEnded + 1: id(keptEnded+1) + " ends"} {
		if text, err := c.Console(t.Context(), id(n)); err != nil || string(text) != want {
			t.Errorf("%d: %q, %v", n, text, err)
		}
	}
	if _, err := c.Console(t.Context(), id(1)); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("an older one: %v", err)
	}
	stops := &machine{id: id(99)}
	stops.rec.Instance.State = cloud.Stopping
	c.keepConsole(stops)
	if len(c.consoles) != keptEnded {
		t.Errorf("%d are kept", len(c.consoles))
	}
}

func TestWhatAGuestCanMakeGrowIsCut(t *testing.T) {
	const id, owner = "i-0123456789abcdef", "me"
	m := &machine{}
	m.rec.Instance = cloud.Instance{ID: id, Tags: map[string]string{cloud.TagOwner: owner}}
	c := &Cloud{
		cfg:      Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)},
		kind:     &sleepers{},
		machines: map[string]*machine{id: m},
	}
	if err := os.MkdirAll(c.cfg.MachineDir(id), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"console.log", "own.log"} {
		path := filepath.Join(c.cfg.MachineDir(id), name)
		if err := os.WriteFile(path, []byte(strings.Repeat("x", maxConsole)+"the end"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.List(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || len(b) != keptConsole || !strings.HasSuffix(string(b), "xthe end") {
			t.Errorf("%s has %d bytes, %v", name, len(b), err)
		}
	}
}
