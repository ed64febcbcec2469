package cells

import (
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

// openEntries is how many entries of cells the ledger keeps apart.
const openEntries = 32

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
		OfPool:        OfPool{Standby: "nano"},
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
		for n := range 2*openEntries + 5 {
			pod := fmt.Sprint("p", n)
			b.requestFor(pod, Account{})
			want["2000-01-01 "+ref(pod).Namespace+"  "+pod+" "] = 0.1
		}
		b.later(6 * time.Minute)
		for n := range 2*openEntries + 5 {
			b.cells.Release(ref(fmt.Sprint("p", n)).UID, "done", false)
		}
		b.later(time.Minute)
		b.wantHours(want)
		var day []costs.Entry
		if revision, err := b.store.Get(b.Context(), "costs/days/2000-01-01", &day); err != nil || revision == 0 || len(day) < openEntries {
			t.Errorf("the day has %d entries: %v", len(day), err)
		}
		b.stop()
		b.run()
		b.wantHours(want)
	})
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
				{Key: "costs/days/" + (today + day).String(), Value: "words"},
				{Key: "costs/sums", Value: map[string]costs.Day{"first": today + day, "last": today + day}},
			} {
				if _, err := b.store.Apply(b.Context(), change); err != nil {
					t.Fatal(err)
				}
			}
			b.run()
			for n := range 2*openEntries + 5 {
				b.requestFor(fmt.Sprint("p", n), Account{})
			}
			b.later(time.Minute)
			for n := range 2*openEntries + 5 {
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
			if seconds < 60*(2*openEntries+5) {
				t.Errorf("%s: the sums have %v seconds", name, seconds)
			}
		})
	}
}

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
