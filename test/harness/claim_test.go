package harness

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/test/network"
)

func TestOnlyWhatAKilledRunLeftIsCleaned(t *testing.T) {
	state := t.TempDir()
	n := network.Network{Bridge: "kip-of-none", CIDR: netip.MustParsePrefix("192.0.2.0/24"), State: state}
	asked := filepath.Join(t.TempDir(), "asked")
	kipDev := filepath.Join(t.TempDir(), "kip-dev")
	if err := os.WriteFile(kipDev, []byte("#!/bin/sh\necho \"$@\" >>"+asked+"\necho removed something\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cleans := func(what string, want error, runs string) {
		t.Helper()
		if err := clean(kipDev, n); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		text, err := os.ReadFile(asked)
		if err != nil && !errors.Is(err, os.ErrNotExist) || strings.TrimSpace(string(text)) != runs {
			t.Errorf("%s: kip-dev is run as %q (%v), want %q", what, text, err, runs)
		}
	}
	cleans("after a run that ended", nil, "")

	lock, err := os.Create(filepath.Join(state, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cleans("while kip-dev still ends", network.ErrInUse, "")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	cleans("when it has ended", nil, "")

	left := exec.Command("sleep", "1000")
	left.Env = append(os.Environ(), mark(state))
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := left.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = left.Wait() // says that it was killed
	}()
	cleans("where a process is left", nil, "clean --state "+state+" --bridge kip-of-none --cidr 192.0.2.0/24")

	if err := os.WriteFile(kipDev, []byte("#!/bin/sh\necho boom >&2; exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := clean(kipDev, n); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("what cannot be cleaned: %v", err)
	}
}
