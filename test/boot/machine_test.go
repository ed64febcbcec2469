package boot

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// fake puts a program in QEMU's place that is a script.
func fake(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, vm.Program), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestAConsoleIsReadLineByLine(t *testing.T) {
	fake(t, `printf '\033[2J[    0.250000] the kernel\r\n[ \033[32mOK\033[0m ] a unit\r\n'; read -r x || exec sleep 60`)
	before := time.Now()
	m, err := Start(vm.Machine{Disk: vm.Disk{File: "d", Format: "raw"}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	unit, err := m.Says(t.Context(), "a unit")
	if err != nil || unit.Text != "[ OK ] a unit" || unit.Seen.Before(before) {
		t.Errorf("%+v, %v", unit, err)
	}
	if d, ok := unit.Stamp(); ok {
		t.Errorf("a line without a time has %v", d)
	}
	kernel, err := m.Says(t.Context(), "the kernel")
	if err != nil || kernel.Seen.After(unit.Seen) {
		t.Errorf("%+v, %v", kernel, err)
	}
	if d, ok := kernel.Stamp(); !ok || d != 250*time.Millisecond {
		t.Errorf("%q has %v, %v", kernel.Text, d, ok)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := m.Says(ctx, "the agent"); err == nil || !strings.Contains(err.Error(), `never said "the agent"`) ||
		!strings.Contains(err.Error(), "[ OK ] a unit") {
		t.Errorf("of what it never says: %v", err)
	}
	if err := m.Ends(ctx); err == nil || !strings.Contains(err.Error(), "is not off") {
		t.Errorf("of one that runs: %v", err)
	}
}

func TestAMachineThatEndsIsNotWaitedFor(t *testing.T) {
	fake(t, "echo last words")
	m, err := Start(vm.Machine{Disk: vm.Disk{File: "d", Format: "raw"}, Card: &vm.Card{}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if !strings.HasPrefix(m.Agent, "127.") {
		t.Errorf("its agent is at %q", m.Agent)
	}
	if _, err := m.Says(t.Context(), "more"); err == nil || !strings.Contains(err.Error(), "has ended") ||
		!strings.Contains(err.Error(), "last words") {
		t.Errorf("of what it never said: %v", err)
	}
	if err := m.Ends(t.Context()); err != nil {
		t.Error(err)
	}
}
