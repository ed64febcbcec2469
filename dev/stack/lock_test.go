package stack

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var holder = Holder{PID: 4242, Command: "make run", Since: time.Date(2026, 3, 1, 10, 3, 12, 0, time.Local)}

func TestASecondHolderIsToldWhoHoldsItAndHowToStopIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := acquire(path, holder)
	if err != nil {
		t.Fatal(err)
	}
	_, err = acquire(path, Holder{PID: 1})
	var held *HeldError
	if !errors.As(err, &held) {
		t.Fatalf("second acquire: %v, want *HeldError", err)
	}
	if got := held.Holder; got.PID != holder.PID || got.Command != holder.Command || !got.Since.Equal(holder.Since) {
		t.Errorf("holder is %+v, want %+v", got, holder)
	}
	for _, want := range []string{"make run is already running", "process 4242", "since 2026-03-01 10:03:12", "kill 4242"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := acquire(path, holder)
	if err != nil {
		t.Fatalf("after Release: %v", err)
	}
	if err := again.Release(); err != nil {
		t.Error(err)
	}
}

func TestWhatADeadHolderWroteIsOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(path, []byte(`{"pid":1,"command":"`+strings.Repeat("x", 500)+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := acquire(path, holder)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	_, err = acquire(path, holder)
	var held *HeldError
	if !errors.As(err, &held) || held.Holder.PID != holder.PID {
		t.Errorf("second acquire: %v", err)
	}
}
