package kip

import (
	"context"
	"testing"
	"time"

	"github.com/elotl/kip/internal/store"
	testclock "k8s.io/utils/clock/testing"
)

func TestFactsOutliveARestart(t *testing.T) {
	st, err := store.OpenEmbedded(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	start := time.Unix(1000, 0).UTC()
	clk := testclock.NewFakePassiveClock(start)
	load := func() *storedFacts {
		t.Helper()
		f, err := loadFacts(t.Context(), st, clk, silent)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	const week = 7 * 24 * time.Hour
	first := load()
	if first.Holds("a") {
		t.Error("a fact holds that nobody noted")
	}
	stored, err := st.Get(t.Context(), factsKey, &map[string]fact{})
	if err != nil {
		t.Fatal(err)
	}
	first.Note("a", week)
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- first.keep(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Minute); ; <-tick.C {
		now, err := st.Get(t.Context(), factsKey, &map[string]fact{})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the fact is not stored: %v", err)
		}
		if now != stored {
			break
		}
	}
	cancel()
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	clk.SetTime(start.Add(week - time.Second))
	if again := load(); !again.Holds("a") || again.Holds("b") {
		t.Error("the fact does not outlive a restart")
	}
	clk.SetTime(start.Add(week))
	if load().Holds("a") {
		t.Error("the fact holds longer than it was to")
	}
	// It was noted by a clock that was years ahead.
	clk.SetTime(start.Add(-1000 * week))
	wrong := load()
	clk.SetTime(clk.Now().Add(week))
	if wrong.Holds("a") {
		t.Error("a clock that was wrong keeps the fact")
	}
}
