package cells

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

func TestTheLedgerHoldsWhatCellsCostOverRestarts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.request("b", "nano")
		b.later(time.Hour)
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Hour)
		b.stop()
		b.run()
		b.later(time.Hour)
		// a ran an hour and b three, at a dollar an hour; what the end of a
		// takes is a second or two of polling.
		got := b.cells.Costs()
		if len(got) != 1 || got[0].InstanceType != "nano" || math.Abs(got[0].Dollars-4) > 0.002 || math.Abs(got[0].Seconds-4*3600) > 6 {
			t.Fatalf("%+v, want some 4 dollars", got)
		}
	})
}

func newLedger(t *testing.T, st *store.Store) *ledger {
	t.Helper()
	l := newLedgerOf(st)
	if err := l.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

func nothing() []Cost { return nil }

func TestTheLedgerTakesOverWhatIsStoredAndNothingElse(t *testing.T) {
	lost := errors.New("no answer")
	for name, tc := range map[string]struct {
		stored bool  // the change reaches the store
		answer error // of the store
		want   float64
	}{
		"stored":                    {stored: true, want: 3},
		"refused":                   {answer: store.ErrConflict, want: 1},
		"no answer, and stored":     {stored: true, answer: lost, want: 3},
		"no answer, and not stored": {answer: lost, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			st := store.Memory(nil)
			l := newLedger(t, st)
			enter := func(seconds float64, stored bool, answer error) error {
				_, err := l.enter(t.Context(), outgoings{costs: []Cost{{InstanceType: "nano", Seconds: seconds}}},
					func(changes []store.Change) (revision int64, err error) {
						if len(changes) != 1 {
							t.Fatalf("%d changes to be stored, want 1", len(changes))
						}
						if stored {
							revision, err = st.Apply(t.Context(), changes...)
						}
						return revision, errors.Join(err, answer)
					})
				return err
			}
			if err := enter(1, true, nil); err != nil {
				t.Fatal(err)
			}
			if err := enter(2, tc.stored, tc.answer); !errors.Is(err, tc.answer) {
				t.Fatalf("it answers %v, want %v", err, tc.answer)
			}
			if err := l.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := l.total(nothing); len(got) != 1 || got[0].Seconds != tc.want {
				t.Errorf("the sums are %+v, want %v seconds", got, tc.want)
			}
			if again := newLedger(t, st).total(nothing); again[0].Seconds != tc.want {
				t.Errorf("after a restart the sums are %+v, want %v seconds", again, tc.want)
			}
		})
	}
}

func TestTheLedgerTellsDedicatedCellsApart(t *testing.T) {
	l := newLedger(t, store.Memory(nil))
	launched := time.Unix(1e9, 0)
	costs := func(dedicated bool) outgoings {
		cell := Cell{Offerings: []Offering{{InstanceType: "nano", Dedicated: dedicated}}, BilledSeconds: 1}
		return outgoings{costs: []Cost{cell.cost(launched)}}
	}
	for range 2 {
		for _, dedicated := range []bool{true, false} {
			if _, err := l.enter(t.Context(), costs(dedicated), func(changes []store.Change) (int64, error) {
				return l.store.Apply(t.Context(), changes...)
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := newLedger(t, l.store).total(nothing); len(got) != 2 || got[0].CapacityType() != cloud.OnDemand || got[0].Seconds != 2 ||
		got[1].CapacityType() != cloud.Dedicated || got[1].Seconds != 2 {
		t.Errorf("the sums are %+v, want 2 seconds of each capacity type", got)
	}
}

func TestNobodyReadsTheLedgerBetweenTheEndOfACellAndItsCost(t *testing.T) {
	l := newLedger(t, store.Memory(nil))
	if _, err := l.enter(t.Context(), outgoings{costs: []Cost{{InstanceType: "nano", Seconds: 1}}}, func([]store.Change) (int64, error) {
		if l.mu.TryLock() {
			t.Error("the sums can be read before the cell that enters them is forgotten")
		}
		return 1, nil
	}); err != nil {
		t.Fatal(err)
	}
	l.total(func() []Cost {
		if l.mu.TryLock() {
			t.Error("a cell can enter while the others are read")
		}
		return nil
	})
}

func TestWhatCostsNothingIsNotWritten(t *testing.T) {
	l := newLedger(t, store.Memory(nil))
	if _, err := l.enter(t.Context(), outgoings{costs: []Cost{{InstanceType: "nano"}}}, func(changes []store.Change) (int64, error) {
		if len(changes) != 0 {
			t.Errorf("%v are stored", changes)
		}
		return 1, nil
	}); err != nil {
		t.Error(err)
	}
}
