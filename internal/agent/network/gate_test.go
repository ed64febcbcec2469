package network

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func TestOneWaitsUntilAllGatesAreOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gates") // made by the first Open
	waited := make(chan error, 1)
	go func() { waited <- Wait(t.Context(), dir, "policy", "services") }()
	for _, name := range []string{"policy", "services"} {
		select {
		case err := <-waited:
			t.Fatalf("let through before %s was open: %v", name, err)
		default:
		}
		if err := Open(dir, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if err := Wait(t.Context(), dir); err != nil {
		t.Errorf("nothing to wait for: %v", err)
	}
}

func TestAWaitThatIsOverNamesTheClosedGates(t *testing.T) {
	dir := t.TempDir()
	if err := Open(dir, "services"); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	err := Wait(ctx, dir, "policy", "services")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "policy") || strings.Contains(err.Error(), "services") {
		t.Errorf("error %v", err)
	}
}

func TestAGateThatWasClosedIsWaitedForAgain(t *testing.T) {
	dir := t.TempDir()
	if err := Open(dir, "policy"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // closed already: the same
		if err := Close(dir, "policy"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := Wait(ctx, dir, "policy"); err == nil {
		t.Error("let through a closed gate")
	}
}
