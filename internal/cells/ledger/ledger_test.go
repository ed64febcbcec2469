package ledger

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/store"
)

func newLedger(t *testing.T, st *store.Store) *Ledger {
	t.Helper()
	l := New(st)
	if err := l.Load(t.Context()); err != nil {
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
				_, err := l.Enter(t.Context(), Outgoings{Costs: []Cost{{InstanceType: "nano", Seconds: seconds}}},
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
			if err := l.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := l.Total(nothing); len(got) != 1 || got[0].Seconds != tc.want {
				t.Errorf("the sums are %+v, want %v seconds", got, tc.want)
			}
			if again := newLedger(t, st).Total(nothing); again[0].Seconds != tc.want {
				t.Errorf("after a restart the sums are %+v, want %v seconds", again, tc.want)
			}
		})
	}
}

func TestTheLedgerTellsDedicatedCellsApart(t *testing.T) {
	l := newLedger(t, store.Memory(nil))
	costs := func(dedicated bool) Outgoings {
		return Outgoings{Costs: []Cost{{InstanceType: "nano", Dedicated: dedicated, Seconds: 1}}}
	}
	for range 2 {
		for _, dedicated := range []bool{true, false} {
			if _, err := l.Enter(t.Context(), costs(dedicated), func(changes []store.Change) (int64, error) {
				return l.store.Apply(t.Context(), changes...)
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := newLedger(t, l.store).Total(nothing); len(got) != 2 || got[0].CapacityType() != offering.OnDemand || got[0].Seconds != 2 ||
		got[1].CapacityType() != offering.Dedicated || got[1].Seconds != 2 {
		t.Errorf("the sums are %+v, want 2 seconds of each capacity type", got)
	}
}

func TestNobodyReadsTheLedgerBetweenTheEndOfACellAndItsCost(t *testing.T) {
	l := newLedger(t, store.Memory(nil))
	if _, err := l.Enter(t.Context(), Outgoings{Costs: []Cost{{InstanceType: "nano", Seconds: 1}}}, func([]store.Change) (int64, error) {
		if l.mu.TryLock() {
			t.Error("the sums can be read before the cell that enters them is forgotten")
		}
		return 1, nil
	}); err != nil {
		t.Fatal(err)
	}
	l.Total(func() []Cost {
		if l.mu.TryLock() {
			t.Error("a cell can enter while the others are read")
		}
		return nil
	})
}

func TestWhatCostsNothingIsNotWritten(t *testing.T) {
	l := newLedger(t, store.Memory(nil))
	if _, err := l.Enter(t.Context(), Outgoings{Costs: []Cost{{InstanceType: "nano"}}}, func(changes []store.Change) (int64, error) {
		if len(changes) != 0 {
			t.Errorf("%v are stored", changes)
		}
		return 1, nil
	}); err != nil {
		t.Error(err)
	}
}

func TestEachMonthHasItsOwnSpending(t *testing.T) {
	january := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	february := MonthOf(january.AddDate(0, 1, 1).In(time.FixedZone("east", 3600)))
	l := &Ledger{spent: Spending{january, map[string]float64{"ns": 7}}}
	if got, next := l.spentByLocked("ns", january), l.spentByLocked("ns", february); got != 7 || next != 0 {
		t.Errorf("7 dollars of January are %v in January and %v in February", got, next)
	}
}

func TestSpendingsOfTooManyNamespacesForgetTheLeast(t *testing.T) {
	month := MonthOf(time.Now())
	many := map[string]float64{}
	for n := range mostKept + 10 {
		many[fmt.Sprint("ns", n)] = float64(n + 1)
	}
	all := Spending{Month: month}.with(Spending{month, many})
	if _, there := all.Dollars["ns9"]; len(all.Dollars) != mostKept || there {
		t.Errorf("%d namespaces are kept, the tenth of them: %t", len(all.Dollars), there)
	}
	later := all.with(Spending{month.AddDate(0, 1, 0), map[string]float64{"a": 1}})
	if len(later.Dollars) != 1 || len(later.with(all).Dollars) != 1 {
		t.Errorf("the next month has %d namespaces", len(later.Dollars))
	}
}
