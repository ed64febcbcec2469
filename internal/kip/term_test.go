package kip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cellca"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/store/storetest"
	"github.com/elotl/kip/internal/watchdog"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestEachKipThatBeginsToLeadHasAHigherTerm(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))
	st := store.Memory(nil)
	last, above := uint64(0), uint64(0)
	var said strings.Builder
	log := slog.New(slog.NewTextHandler(&said, nil))
	begin := func(when string) {
		t.Helper()
		term, err := beginTerm(t.Context(), st, above, clk, log)
		if err != nil {
			t.Fatal(err)
		}
		if term <= last {
			t.Errorf("%s: the term %d follows %d", when, term, last)
		}
		last = term
	}
	begin("the first")
	var backup bytes.Buffer
	if err := st.Backup(t.Context(), &backup, clk.Now()); err != nil {
		t.Fatal(err)
	}
	begin("at the same moment")
	clk.SetTime(clk.Now().Add(-pki.ClockSkew / 2))
	begin("by a clock that is behind")
	clk.SetTime(clk.Now().Add(2 * time.Hour))
	begin("later")
	clk.SetTime(clk.Now().Add(time.Minute))
	st = store.Memory(nil)
	begin("in an empty store")
	clk.SetTime(clk.Now().Add(time.Minute))
	st = store.Memory(nil)
	if err := st.Restore(t.Context(), &backup, false); err != nil {
		t.Fatal(err)
	}
	begin("in a store of a backup")

	above = last + 1000
	begin("after another that had the node")
	if last <= above {
		t.Errorf("after the term %d of another that had the node comes %d", above, last)
	}
	above = uint64(clk.Now().Add(2 * pki.ClockSkew).UnixMilli())
	begin("after one that cells would not believe")
	if last > above {
		t.Errorf("a term from far ahead is followed by %d", last)
	}
	above = 0

	// Cells take a term from far ahead for none.
	if said.Len() > 0 {
		t.Errorf("it says %q", said.String())
	}
	clk.SetTime(clk.Now().Add(-2 * pki.ClockSkew))
	begin("by a clock that is far behind")
	if !strings.Contains(said.String(), "cells cannot tell this Kip") {
		t.Errorf("of a term from far ahead it says %q", said.String())
	}
}

func TestAKipThatIsDeposedBeginsNoTerm(t *testing.T) {
	st := store.Memory(nil)
	first, err := st.Put(t.Context(), "leader", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	fenced := st.Fenced(st.Prefix()+"leader", first)
	if _, err := st.Put(t.Context(), "leader", 2, first); err != nil {
		t.Fatal(err)
	}
	clk := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	if _, err := beginTerm(t.Context(), fenced, 0, clk, silent); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("it began one: %v", err)
	}
}

func TestAKipThatIsToBeginAnewLeadsAgain(t *testing.T) {
	etcd := storetest.Serve(t, nil)
	st, err := store.OpenExternal(t.Context(), store.External{Endpoints: []string{etcd.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	k := &process{Options: Options{Log: silent}, clock: clk, watchdog: watchdog.New(clk, silent), role: &role{}}
	over := errors.New("it is over")
	ends := []error{fmt.Errorf("hold: %w", holder.ErrOther), fmt.Errorf("hold: %w", holder.ErrFollowed), cells.ErrTakenOver,
		fmt.Errorf("cells: %w", cellca.ErrNew), fmt.Errorf("cells: %w", cells.ErrBehindTime), over}
	led := 0
	if err := k.takeTurns(t.Context(), st.Within("kip/"), func(context.Context, *store.Store) error {
		led++
		return ends[led-1]
	}); !errors.Is(err, over) || led != len(ends) {
		t.Errorf("it led %d times, and ended with %v", led, err)
	}
}
