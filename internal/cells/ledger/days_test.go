package ledger

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/costs"
	"github.com/elotl/kip/internal/store"
)

// keeper is a ledger with a time, whose ends are stored.
type keeper struct {
	*testing.T
	*Ledger
	now time.Time
}

func keeperOf(t *testing.T, st *store.Store) *keeper {
	return &keeper{t, newLedger(t, st), time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
}

// end enters n cells that have run for an hour, in the store or in the hands of apply.
func (k *keeper) end(n int, namespace string, apply func(...store.Change) (int64, error)) error {
	k.Helper()
	var entries []costs.Entry
	for i := range n {
		entries = append(entries, costs.Of(costs.Key{Namespace: namespace, Pod: fmt.Sprintf("%s-%d", namespace, i)},
			k.now.Add(-time.Hour), 3600, costs.Price{Machine: costs.Rate{PerHour: 1}}, costs.Use{}))
	}
	if apply == nil {
		apply = func(changes ...store.Change) (int64, error) { return k.store.Apply(k.Context(), changes...) }
	}
	_, err := k.Enter(k.Context(), Outgoings{At: k.now, Entries: entries},
		func(changes []store.Change) (int64, error) { return apply(changes...) })
	return err
}

// hours are those of all days, and of the namespaces.
func (k *keeper) hours() (days, namespaces float64) {
	k.Helper()
	if err := k.Load(k.Context()); err != nil {
		k.Fatal(err)
	}
	if err := k.store.List(k.Context(), daysPrefix, func(key string, _ []byte, _ int64) error {
		var entries []costs.Entry
		_, err := k.store.Get(k.Context(), key, &entries)
		for _, e := range entries {
			days += e.Total().Seconds / 3600
		}
		return err
	}); err != nil {
		k.Fatal(err)
	}
	for _, e := range k.days.open {
		days += e.Total().Seconds / 3600
	}
	for _, a := range k.days.byNamespace(k.days.open) {
		namespaces += a.Seconds / 3600
	}
	return days, namespaces
}

func TestWhatTheStoreAnswersDecidesWhetherAnEndIsCounted(t *testing.T) {
	lost := errors.New("no answer")
	for _, before := range []int{1, mostOpen} { // the second end goes into the day
		for _, tc := range []struct {
			stored bool
			answer error
			want   float64
		}{
			{stored: true, want: 2},
			{answer: store.ErrConflict},
			{stored: true, answer: lost, want: 2},
			{answer: lost},
		} {
			k := keeperOf(t, store.Memory(nil))
			if err := k.end(before, "first", nil); err != nil {
				t.Fatal(err)
			}
			if err := k.end(2, "second", func(changes ...store.Change) (int64, error) {
				if !tc.stored {
					return 0, tc.answer
				}
				revision, err := k.store.Apply(t.Context(), changes...)
				return revision, errors.Join(err, tc.answer)
			}); !errors.Is(err, tc.answer) {
				t.Errorf("%+v: %v", tc, err)
			}
			for _, who := range []*keeper{k, {t, newLedger(t, k.store), k.now}} {
				if days, namespaces := who.hours(); math.Abs(days-namespaces) > 1e-9 || math.Abs(days-float64(before)-tc.want) > 1e-9 {
					t.Errorf("after %d ends, %+v: days have %v hours and namespaces %v, want %v",
						before, tc, days, namespaces, float64(before)+tc.want)
				}
			}
			if err := k.end(3, "third", nil); err != nil {
				t.Errorf("%+v: the next end: %v", tc, err)
			}
		}
	}
}

func TestTheLedgerStaysSmallAndForgetsDaysThatAreOld(t *testing.T) {
	k := keeperOf(t, store.Memory(nil))
	ends := 0.0
	for day := range costs.Kept + 30 {
		n := mostOpen + 1
		if day == 7 {
			n = 3000 // the day does not hold them all by name
		}
		for range 1 + day%2 { // some go into a day that has a record
			if err := k.end(n, "ns", nil); err != nil {
				t.Fatal(err)
			}
			ends += float64(n)
		}
		if day == 8 {
			if days, _ := k.hours(); math.Abs(days-ends) > 1e-6 {
				t.Errorf("%v hours, want %v: nothing is lost where names are", days, ends)
			}
		}
		k.now = k.now.Add(24 * time.Hour)
	}
	records, most := 0, 0
	if err := k.store.List(t.Context(), costsPrefix, func(key string, data []byte, _ int64) error {
		if strings.HasPrefix(key, daysPrefix) {
			records++
			most = max(most, len(data))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if records < costs.Kept || records > costs.Kept+2 || most > mostDayBytes {
		t.Errorf("%d days of at most %d bytes, want %d of %d", records, most, costs.Kept, mostDayBytes)
	}
	if _, namespaces := k.hours(); math.Abs(namespaces-ends) > 1e-6 {
		t.Errorf("the namespaces have %v hours, want %v: a counter does not forget", namespaces, ends)
	}
}

func TestNamespacesBeyondTheMostAreSummedAndNoSumDecreases(t *testing.T) {
	k := keeperOf(t, store.Memory(nil))
	last := map[string]float64{}
	for n := range mostNamespaces + 100 {
		if n == mostNamespaces/2 {
			k.Ledger = newLedger(t, k.store)
		}
		if err := k.end(1+n%3, fmt.Sprint("ns-", n), nil); err != nil {
			t.Fatal(err)
		}
		sums := k.days.byNamespace(k.days.open)
		for namespace, was := range last {
			if sums[namespace].Dollars < was {
				t.Fatalf("%s has cost $%v after it had cost $%v", namespace, sums[namespace].Dollars, was)
			}
		}
		for namespace, a := range sums {
			last[namespace] = a.Dollars
		}
	}
	if len(last) != mostNamespaces+1 || last[costs.Others] == 0 || last["ns-3"] == 0 {
		t.Errorf("%d sums, others have $%v: want %d and others", len(last), last[costs.Others], mostNamespaces)
	}
}
