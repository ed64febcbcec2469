package cells

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/costs"
	"github.com/elotl/kip/internal/store"
)

// spent is what Spent tells, in hours, by day and by whom.
func (b *bubble) spent() map[string]float64 {
	b.Helper()
	hours := map[string]float64{}
	err := b.cells.Spent(b.Context(), 0, math.MaxInt32, func(s costs.Key, d costs.Day, a costs.Amount) {
		hours[fmt.Sprintf("%s %s %s %s %s", d, s.Namespace, s.Owner, s.Pod, s.Labels)] += a.Seconds / 3600
	})
	if err != nil {
		b.Fatal(err)
	}
	return hours
}

// wantHours compares what was spent with what is wanted, but for a minute.
func (b *bubble) wantHours(want map[string]float64) {
	b.Helper()
	got := b.spent()
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, wanted := want[key]; !wanted && got[key] > 1.0/60 {
			b.Errorf("%.3f hours of %q, which nobody wants", got[key], key)
		}
	}
	for key, hours := range want {
		if math.Abs(got[key]-hours) > 1.0/60 {
			b.Errorf("%.3f hours of %q, want %v", got[key], key, hours)
		}
	}
	// The same money in all three sums.
	var days, types, namespaces costs.Amount
	err := b.cells.Spent(b.Context(), 0, math.MaxInt32, func(_ costs.Key, _ costs.Day, a costs.Amount) { days = days.Plus(a) })
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range b.cells.CostsByNamespace() {
		namespaces = namespaces.Plus(a)
	}
	for _, c := range b.cells.Costs() {
		types = types.Plus(costs.Amount{Seconds: c.Seconds, Dollars: c.Dollars})
	}
	for what, sum := range map[string]costs.Amount{"days": days, "namespaces": namespaces} {
		if math.Abs(sum.Dollars-types.Dollars) > 1e-6 || math.Abs(sum.Seconds-types.Seconds) > 1e-6 {
			b.Errorf("the %s have %+v, the counter has %+v", what, sum, types)
		}
	}
}

func (b *bubble) requestFor(pod string, account Account) {
	b.Helper()
	r := nano(pod)
	r.Account = account
	if _, err := b.cells.Request(b.Context(), r); err != nil {
		b.Fatal(err)
	}
}

func TestWhatWasSpentIsKnownByDayAndPodAlsoAfterRestarts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) { // it begins at midnight
		b.later(20 * time.Hour)
		b.requestFor("a", Account{Owner: "Deployment/web", Labels: map[string]string{"team": "blue", "app": "web"}})
		b.requestFor("b", Account{})
		b.later(time.Hour)
		b.cells.Release(ref("a").UID, "done", false)
		b.later(9 * time.Hour)
		want := map[string]float64{
			"2000-01-01 " + ref("a").Namespace + " Deployment/web a app=web,team=blue": 1,
			"2000-01-01 " + ref("b").Namespace + "  b ":                                4,
			"2000-01-02 " + ref("b").Namespace + "  b ":                                6,
		}
		b.wantHours(want)
		b.stop()
		b.run()
		b.wantHours(want)
		b.cells.Release(ref("b").UID, "done", false)
		b.later(time.Minute)
		b.stop()
		b.run()
		b.wantHours(want)
	})
}

func TestAStandbyCellIsItsPoolsUntilAPodHasIt(t *testing.T) {
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.RefillDelay = 100 * time.Hour
	}, nil, func(t *testing.T, b *bubble) {
		b.later(2 * time.Hour)
		b.requestFor("a", Account{Owner: "Job/x"})
		b.later(3 * time.Hour)
		want := map[string]float64{
			"2000-01-01 (no pod) Standby/nano  ":             2,
			"2000-01-01 " + ref("a").Namespace + " Job/x a ": 3,
		}
		b.wantHours(want)
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Minute)
		b.wantHours(want)
	})
}

func TestWhatACellCostBeforeItWasStoppedIsNotLost(t *testing.T) {
	start := time.Date(2026, 11, 1, 23, 55, 0, 0, time.UTC)
	running := Cell{
		Standby:       "nano",
		Offerings:     []Offering{{InstanceType: "nano", PricePerHour: 6}},
		Instance:      &cloud.Instance{Launched: start},
		BilledSeconds: 100,
	}
	stopped := running
	stopped.Stopped, stopped.BilledSeconds = true, 100+600
	taken := stopped.clone()
	taken.Stopped, taken.Instance.Launched = false, start.Add(time.Hour)
	taken.Pod = apiv1.PodReference{Namespace: "ns", Name: "p", UID: "1"}
	taken.step(apiv1.StepGiven, start.Add(50*time.Minute))
	gone, goneStopped := taken, stopped
	gone.Phase, goneStopped.Phase = apiv1.Gone, apiv1.Gone
	for what, tc := range map[string]struct {
		before, after *Cell
		want          string
	}{
		"stops":           {&running, &stopped, "Standby/nano  2026-11-01 300 0.5, Standby/nano  2026-11-02 300 0.5, "},
		"stays stopped":   {&stopped, &stopped, ""},
		"starts":          {&stopped, &taken, ""},
		"ends":            {&taken, &gone, " p 2026-11-02 1200 2, "},
		"ends as stopped": {&stopped, &goneStopped, ""},
	} {
		var got strings.Builder
		for _, e := range ended(tc.before, tc.after, start.Add(80*time.Minute), costs.Use{}) {
			e.Each(0, math.MaxInt32, func(d costs.Day, a costs.Amount) {
				fmt.Fprintf(&got, "%s %s %s %.0f %v, ", e.Owner, e.Pod, d, a.Seconds, a.Dollars)
			})
		}
		if got.String() != tc.want {
			t.Errorf("a cell that %s: %q, want %q", what, got.String(), tc.want)
		}
	}
}

// fixedMeter tells the same of each cell.
type fixedMeter costs.Use

func (m fixedMeter) Use(string) costs.Use { return costs.Use(m) }

// A standby cell that waits for a pod is idle, and of a pod it is what the meter says.
func TestWhatStoodIdleIsToldAlsoAfterTheCellHasGone(t *testing.T) {
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.RefillDelay = 100 * time.Hour
		c.Meter = fixedMeter{Measured: 3600, Idle: 900}
	}, nil, func(t *testing.T, b *bubble) {
		b.later(2 * time.Hour)
		b.requestFor("a", Account{})
		b.later(3 * time.Hour)
		look := func(when string, sums map[string]Amount) {
			t.Helper()
			for namespace, want := range map[string]struct{ measured, idle float64 }{costs.NoPod: {2, 1}, ref("a").Namespace: {1, 0.25 / 3}} {
				sum := sums[namespace]
				if measured, idle := sum.Measured/3600, sum.IdleDollars/sum.Dollars; math.Abs(measured-want.measured) > 0.01 ||
					math.Abs(idle-want.idle) > 0.01 || sum.Dollars == 0 {
					t.Errorf("%s: of %s %v h are measured, %v of its dollars idle, want %+v", when, namespace, measured, idle, want)
				}
			}
		}
		sums := map[string]Amount{}
		if err := b.cells.Spent(b.Context(), 0, math.MaxInt32, func(s costs.Key, _ costs.Day, a costs.Amount) {
			sums[s.Namespace] = sums[s.Namespace].Plus(a)
		}); err != nil {
			t.Fatal(err)
		}
		look("while the cell runs", sums)
		if running := b.cells.CostsByNamespace()[ref("a").Namespace]; running.IdleDollars != 0 || running.Dollars == 0 {
			t.Errorf("the counter has what a cell that runs has not used, which a restart forgets: %+v", running)
		}
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Minute)
		look("when it is gone", b.cells.CostsByNamespace())
	})
}

func TestManyEndsGoIntoTheirDayAndNothingIsLost(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		want := map[string]float64{}
		for n := range 2*mostOpen + 5 {
			pod := fmt.Sprint("p", n)
			b.requestFor(pod, Account{})
			want["2000-01-01 "+ref(pod).Namespace+"  "+pod+" "] = 0.1
		}
		b.later(6 * time.Minute)
		for n := range 2*mostOpen + 5 {
			b.cells.Release(ref(fmt.Sprint("p", n)).UID, "done", false)
		}
		b.later(time.Minute)
		b.wantHours(want)
		var day []costs.Entry
		if revision, err := b.store.Get(b.Context(), daysPrefix+"2000-01-01", &day); err != nil || revision == 0 || len(day) < mostOpen {
			t.Errorf("the day has %d entries: %v", len(day), err)
		}
		b.stop()
		b.run()
		b.wantHours(want)
	})
}

// keeper is a ledger with a time, whose ends are stored.
type keeper struct {
	*testing.T
	*ledger
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
	_, err := k.enter(k.Context(), outgoings{at: k.now, entries: entries},
		func(changes []store.Change) (int64, error) { return apply(changes...) })
	return err
}

// hours are those of all days, and of the namespaces.
func (k *keeper) hours() (days, namespaces float64) {
	k.Helper()
	if err := k.load(k.Context()); err != nil {
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
			k.ledger = newLedger(t, k.store)
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

func TestACellOfUnknownPriceIsCountedAsSuch(t *testing.T) {
	for _, of := range []struct {
		offering Offering
		want     costs.Amount
	}{
		{Offering{Unpriced: true}, costs.Amount{Seconds: 60, Unpriced: 60}},
		{Offering{PricePerHour: 60, DiskPerHour: 120, AddressUnpriced: true},
			costs.Amount{Seconds: 60, Dollars: 1, DiskDollars: 2, AddressUnpriced: 60}},
		{Offering{PricePerHour: 60, DiskUnpriced: true, AddressPerHour: 180},
			costs.Amount{Seconds: 60, Dollars: 1, DiskUnpriced: 60, AddressDollars: 3}},
	} {
		c := Cell{Pod: apiv1.PodReference{Namespace: "ns", Name: "p", UID: "1"}, Offerings: []Offering{of.offering}}
		got := c.entries(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), 60, costs.Use{})
		if len(got) != 1 || got[0].Total() != of.want {
			t.Errorf("%+v, want a minute of %+v", got, of.want)
		}
	}
}

// TestADayThatCannotBeReadHoldsUpNoEnd: what is in the way is one of today, or one that has
// expired.
func TestADayThatCannotBeReadHoldsUpNoEnd(t *testing.T) {
	for name, day := range map[string]costs.Day{"today": 0, "a day that has expired": -costs.Kept - 1} {
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			b.stop()
			today := costs.DayOf(time.Now())
			for _, change := range []store.Change{
				{Key: daysPrefix + (today + day).String(), Value: "words"},
				{Key: sumsKey, Value: costSums{First: today + day, Last: today + day}},
			} {
				if _, err := b.store.Apply(b.Context(), change); err != nil {
					t.Fatal(err)
				}
			}
			b.run()
			for n := range 2*mostOpen + 5 {
				b.requestFor(fmt.Sprint("p", n), Account{})
			}
			b.later(time.Minute)
			for n := range 2*mostOpen + 5 {
				b.cells.Release(ref(fmt.Sprint("p", n)).UID, "done", false)
			}
			b.later(time.Minute)
			if left := b.cells.List(); len(left) > 0 {
				t.Errorf("%s: %d cells are left", name, len(left))
			}
			seconds := 0.0
			for _, a := range b.cells.CostsByNamespace() {
				seconds += a.Seconds
			}
			if seconds < 60*(2*mostOpen+5) {
				t.Errorf("%s: the sums have %v seconds", name, seconds)
			}
		})
	}
}
