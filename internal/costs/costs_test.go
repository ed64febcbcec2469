package costs

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func at(s string) time.Time {
	t, err := time.Parse(time.DateTime, s)
	if err != nil {
		panic(err)
	}
	return t
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

func TestACellIsSplitAtMidnightInUTC(t *testing.T) {
	for _, tc := range []struct {
		from    string
		zone    int
		seconds float64
		want    string
	}{
		{"2026-11-23 10:00:00", 0, 3600, "2026-11-23:3600"},
		{"2026-11-23 23:00:00", 0, 3600, "2026-11-23:3600"},
		{"2026-11-23 23:00:00", 0, 3601, "2026-11-23:3600 2026-11-24:1"},
		{"2026-11-23 00:00:00", 0, 86400, "2026-11-23:86400"},
		{"2026-11-23 23:59:59", 0, 2*86400 + 2, "2026-11-23:1 2026-11-24:86400 2026-11-25:86400 2026-11-26:1"},
		{"2026-11-24 00:30:00", 3600, 3600, "2026-11-23:1800 2026-11-24:1800"},
		{"1969-12-31 23:59:59", 0, 2, "1969-12-31:1 1970-01-01:1"},
		{"2026-11-23 10:00:00", 0, 0, ""},
		{"2026-11-23 10:00:00", 0, -5, ""},
	} {
		from := at(tc.from).Add(-time.Duration(tc.zone) * time.Second).In(time.FixedZone("", tc.zone))
		var got []string
		e := Of(Key{}, from, tc.seconds, Price{Machine: Rate{PerHour: 3600}}, Use{})
		e.Each(math.MinInt32, math.MaxInt32, func(d Day, a Amount) {
			got = append(got, fmt.Sprintf("%s:%v", d, a.Seconds))
			if a.Dollars != a.Seconds || a.Unpriced != 0 {
				t.Errorf("from %s: %+v, at a dollar a second", tc.from, a)
			}
		})
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%v s from %s: %s, want %s", tc.seconds, tc.from, s, tc.want)
		}
	}
}

func TestWhatHasNoKnownPriceIsNoDollars(t *testing.T) {
	e := Of(Key{}, at("2026-11-23 23:00:00"), 3*86400, Price{Machine: Rate{PerHour: 5, Unknown: true}}, Use{})
	if got, want := e.Total(), (Amount{Seconds: 3 * 86400, Unpriced: 3 * 86400}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestEachPartOfThePriceIsCountedByItself(t *testing.T) {
	e := Of(Key{}, at("2026-11-23 23:00:00"), 3*86400, Price{
		Machine: Rate{Unknown: true}, Disk: Rate{PerHour: 2}, Address: Rate{PerHour: 3, Unknown: true},
	}, Use{})
	want := Amount{Seconds: 3 * 86400, Unpriced: 3 * 86400, DiskDollars: 144, AddressUnpriced: 3 * 86400}
	if got := e.Total(); got != want || got.Known() != 144 {
		t.Errorf("%+v, want %+v", got, want)
	}
	e = Of(Key{}, at("2026-11-23 23:00:00"), 3600, Price{
		Machine: Rate{PerHour: 1}, Disk: Rate{Unknown: true}, Address: Rate{PerHour: 3},
	}, Use{})
	want = Amount{Seconds: 3600, Dollars: 1, DiskUnpriced: 3600, AddressDollars: 3}
	sum := Sum([]Entry{e, e}, 0)
	if got := e.Total(); got != want || got.Known() != 4 || len(sum) != 1 || sum[0].Total() != want.Plus(want) {
		t.Errorf("%+v, want %+v, and twice that: %+v", got, want, sum)
	}
}

func TestWhatStoodIdleIsPartOfWhatMachinesCost(t *testing.T) {
	price := Price{Machine: Rate{PerHour: 2}, Disk: Rate{PerHour: 7}}
	for name, tc := range map[string]struct {
		price Price
		use   Use
		want  Amount
	}{
		"not measured": {price, Use{}, Amount{Seconds: 7200, Dollars: 4, DiskDollars: 14}},
		"half of the time, a quarter of it idle": {price, Use{Measured: 3600, Idle: 900},
			Amount{Seconds: 7200, Dollars: 4, DiskDollars: 14, Measured: 3600, IdleDollars: 0.5}},
		"longer than it ran": {price, Use{Measured: 14400, Idle: 14400},
			Amount{Seconds: 7200, Dollars: 4, DiskDollars: 14, Measured: 7200, IdleDollars: 4}},
		"more idle than measured": {price, Use{Measured: 10, Idle: 20},
			Amount{Seconds: 7200, Dollars: 4, DiskDollars: 14, Measured: 10, IdleDollars: 4.0 / 720}},
		"less than nothing": {price, Use{Measured: -1, Idle: -1}, Amount{Seconds: 7200, Dollars: 4, DiskDollars: 14}},
		"of a price that is not known": {Price{Machine: Rate{Unknown: true}}, Use{Measured: 3600, Idle: 900},
			Amount{Seconds: 7200, Unpriced: 7200, Measured: 3600}},
	} {
		e := Of(Key{}, at("2026-11-23 23:00:00"), 7200, tc.price, tc.use)
		got := e.Total()
		if d := got.IdleDollars - tc.want.IdleDollars; d < -1e-9 || d > 1e-9 {
			t.Errorf("%s: %v dollars were idle, want %v", name, got.IdleDollars, tc.want.IdleDollars)
		}
		if got.IdleDollars = tc.want.IdleDollars; got != tc.want || len(e.Runs) != 2 {
			t.Errorf("%s: %+v, want %+v, on two days", name, got, tc.want)
		}
	}
}

func TestALongLifeIsFewBytes(t *testing.T) {
	e := Of(Key{Pod: "web"}, at("2026-01-01 23:00:00"), 390*86400, Price{Machine: Rate{PerHour: 0.0123}}, Use{})
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Runs) != 3 || len(data) > 200 {
		t.Errorf("%d runs in %d bytes: %s", len(e.Runs), len(data), data)
	}
}

func TestADateIsReadAsItIsWritten(t *testing.T) {
	for _, s := range []string{"2026-11-23", "1970-01-01", "1969-12-31", "2028-02-29"} {
		d, err := ParseDay(s)
		if err != nil || d.String() != s || DayOf(d.Begins()) != d || DayOf(d.Begins().Add(-time.Nanosecond)) != d-1 {
			t.Errorf("%s: %s, %v", s, d, err)
		}
	}
	for _, s := range []string{"", "2026-13-01", "2026-2-1", "23.11.2026", "2026-11-23T00:00:00Z", "2027-02-29"} {
		if d, err := ParseDay(s); err == nil {
			t.Errorf("%q is %s, want an error", s, d)
		}
	}
}

// some are entries of random cells.
func some(r *rand.Rand, n int) (all []Entry) {
	for range n {
		s := Key{
			Namespace:    fmt.Sprintf("team-%d", r.IntN(12)),
			Owner:        fmt.Sprintf("Deployment/app-%d", r.IntN(40)),
			Pod:          fmt.Sprintf("app-7d4b9c6f5-%d", r.IntN(2000)),
			Labels:       fmt.Sprintf("team=%d", r.IntN(5)),
			InstanceType: fmt.Sprintf("c%d.large", r.IntN(9)),
			LaunchType:   []string{"on-demand", "spot"}[r.IntN(2)],
		}
		all = append(all, Of(s, at("2026-11-01 00:00:00").Add(time.Duration(r.IntN(20*86400))*time.Second), r.Float64()*3*86400,
			Price{
				Machine: Rate{PerHour: r.Float64(), Unknown: r.IntN(5) == 0},
				Disk:    Rate{PerHour: r.Float64() / 50, Unknown: r.IntN(9) == 0},
				Address: Rate{PerHour: 0.005, Unknown: r.IntN(9) == 0},
			}, Use{Measured: r.Float64() * 86400, Idle: r.Float64() * 3600}))
	}
	return all
}

func byDay(entries []Entry) map[string]Amount {
	sums := map[string]Amount{}
	for _, e := range entries {
		e.Each(math.MinInt32, math.MaxInt32, func(d Day, a Amount) {
			k := d.String() + " " + e.LaunchType
			sums[k] = sums[k].Plus(a)
		})
	}
	return sums
}

func sameSums(t *testing.T, what string, got, want map[string]Amount) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d days, want %d", what, len(got), len(want))
	}
	for k, w := range want {
		g := got[k]
		if !near(g.Seconds, w.Seconds) || !near(g.Dollars, w.Dollars) || !near(g.Unpriced, w.Unpriced) ||
			!near(g.DiskDollars, w.DiskDollars) || !near(g.DiskUnpriced, w.DiskUnpriced) ||
			!near(g.AddressDollars, w.AddressDollars) || !near(g.AddressUnpriced, w.AddressUnpriced) {
			t.Errorf("%s: %s has %+v, want %+v", what, k, g, w)
		}
	}
}

func TestWhatIsSummedToFitLosesNothingOfADay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, most := range []int{1 << 20, 192 << 10, 32 << 10, 16 << 10, 10 << 10} {
		for range 3 {
			entries := some(r, 1+r.IntN(800))
			got, err := Compact(entries, math.MinInt32, most)
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			if len(data) > most {
				t.Errorf("%d entries are %d bytes, at most %d are wanted", len(entries), len(data), most)
			}
			sameSums(t, fmt.Sprintf("%d entries in %d bytes", len(entries), most), byDay(got), byDay(entries))
			if !slices.IsSortedFunc(got, func(a, b Entry) int { return compare(a.Key, b.Key) }) {
				t.Error("not in order")
			}
			var back []Entry
			if err := json.Unmarshal(data, &back); err != nil {
				t.Fatal(err)
			}
			sameSums(t, "read again", byDay(back), byDay(entries))
		}
	}
}

func TestTheDearestKeepTheirNames(t *testing.T) {
	var entries []Entry
	for n := range 2000 {
		s := Key{Namespace: "ns", Owner: "Job/batch", Pod: fmt.Sprintf("batch-%04d", n), InstanceType: "c5.large"}
		entries = append(entries, Of(s, at("2026-11-23 00:00:00"), float64(1+n), Price{Machine: Rate{PerHour: 1}}, Use{}))
	}
	got, err := Compact(entries, 0, 32<<10)
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, e := range got {
		named[e.Pod] = true
		if e.Namespace != "ns" || e.Owner != "Job/batch" {
			t.Errorf("%+v has lost more than its pod", e.Key)
		}
	}
	if !named["batch-1999"] || named["batch-0000"] || !named[Others] || len(named) < 100 {
		t.Errorf("%d names; the dearest %t, the cheapest %t, others %t",
			len(named), named["batch-1999"], named["batch-0000"], named[Others])
	}
}

func TestTheWorstDayFits(t *testing.T) {
	// Keys with the longest names that Kubernetes allows, each in 400 days that differ.
	r := rand.New(rand.NewPCG(3, 4))
	var entries []Entry
	for n := range 12 {
		name := strings.Repeat("x", 240)
		s := Key{
			Namespace:    fmt.Sprintf("%s-%d", name[:60], n),
			Owner:        fmt.Sprintf("Deployment/%s-%d", name, n),
			Pod:          fmt.Sprintf("%s-%d", name, n),
			Labels:       name,
			InstanceType: fmt.Sprintf("u-24tb1.%d", n),
			LaunchType:   []string{"on-demand", "spot", "dedicated"}[n%3],
		}
		e := Entry{Key: s}
		for d := range Day(Kept) {
			a := Amount{Seconds: r.Float64() * 1e9, Dollars: r.Float64() * 1e5, Unpriced: r.Float64() * 1e9}
			e.Runs = append(e.Runs, Run{First: 20000 + d, Amount: a})
		}
		entries = append(entries, e)
	}
	const most = 128 << 10
	got, err := Compact(entries, 0, most)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := json.Marshal(got); err != nil || len(data) > most {
		t.Errorf("%d bytes, at most %d: %v", len(data), most, err)
	}
}

func TestDaysThatAreNotKeptGo(t *testing.T) {
	e := Of(Key{Pod: "old"}, at("2026-11-01 00:00:00"), 10*86400, Price{Machine: Rate{PerHour: 1}}, Use{})
	first, err := ParseDay("2026-11-08")
	if err != nil {
		t.Fatal(err)
	}
	got := Sum([]Entry{e}, first)
	if len(got) != 1 || !near(got[0].Total().Seconds, 3*86400) {
		t.Errorf("%+v, want three days", got)
	}
	if got := Sum([]Entry{e}, first+30); len(got) != 0 {
		t.Errorf("%+v, want nothing", got)
	}
}
