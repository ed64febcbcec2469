package costs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

const (
	// Others stands for the names of several that are summed, and NoPod for the namespace
	// of a cell without a pod. Kubernetes allows neither as a name.
	Others = "(others)"
	NoPod  = "(no pod)"
	// Kept is how many days are kept.
	Kept = 400
)

// Day is one in UTC, counted from 1 January 1970.
type Day int

const layout = time.DateOnly

// DayOf is the day of a time.
func DayOf(t time.Time) Day { return Day(math.Floor(float64(t.Unix()) / (24 * 60 * 60))) }

// Begins is when a day begins.
func (d Day) Begins() time.Time { return time.Unix(int64(d)*24*60*60, 0).UTC() }

func (d Day) String() string { return d.Begins().Format(layout) }

// ParseDay reads a day as String writes it.
func ParseDay(s string) (Day, error) {
	t, err := time.ParseInLocation(layout, s, time.UTC)
	if err != nil {
		return 0, fmt.Errorf("%q is no date such as 2026-11-01", s)
	}
	return DayOf(t), nil
}

// Amount is what cells have cost.
type Amount struct {
	Seconds float64 `json:"s,omitempty"`
	// Dollars are of the machines.
	Dollars float64 `json:"c,omitempty"`
	// Unpriced are those of Seconds whose price is not known: they are no Dollars.
	Unpriced float64 `json:"u,omitempty"`
	// The same of root disks and of public addresses.
	DiskDollars     float64 `json:"dc,omitempty"`
	DiskUnpriced    float64 `json:"du,omitempty"`
	AddressDollars  float64 `json:"ac,omitempty"`
	AddressUnpriced float64 `json:"au,omitempty"`
	// Measured are those of Seconds for which it is known how much of the machine was used,
	// and IdleDollars those of Dollars that were paid for what of it was not.
	Measured    float64 `json:"ms,omitempty"`
	IdleDollars float64 `json:"ic,omitempty"`
}

// Known are the dollars that are known.
func (a Amount) Known() float64 { return a.Dollars + a.DiskDollars + a.AddressDollars }

// Plus is the sum.
func (a Amount) Plus(b Amount) Amount {
	return Amount{
		Seconds:         a.Seconds + b.Seconds,
		Dollars:         a.Dollars + b.Dollars,
		Unpriced:        a.Unpriced + b.Unpriced,
		DiskDollars:     a.DiskDollars + b.DiskDollars,
		DiskUnpriced:    a.DiskUnpriced + b.DiskUnpriced,
		AddressDollars:  a.AddressDollars + b.AddressDollars,
		AddressUnpriced: a.AddressUnpriced + b.AddressUnpriced,
		Measured:        a.Measured + b.Measured,
		IdleDollars:     a.IdleDollars + b.IdleDollars,
	}
}

func (a Amount) times(n int) Amount {
	by := float64(n)
	return Amount{
		Seconds:         a.Seconds * by,
		Dollars:         a.Dollars * by,
		Unpriced:        a.Unpriced * by,
		DiskDollars:     a.DiskDollars * by,
		DiskUnpriced:    a.DiskUnpriced * by,
		AddressDollars:  a.AddressDollars * by,
		AddressUnpriced: a.AddressUnpriced * by,
		Measured:        a.Measured * by,
		IdleDollars:     a.IdleDollars * by,
	}
}

// Rate is what an hour of something costs, in dollars; not known if Unknown.
type Rate struct {
	PerHour float64
	Unknown bool
}

func (r Rate) of(seconds float64) (dollars, unpriced float64) {
	if r.Unknown {
		return 0, seconds
	}
	return seconds / 3600 * r.PerHour, 0
}

// Price is what an hour of a cell costs, part by part.
type Price struct{ Machine, Disk, Address Rate }

func (p Price) of(seconds, measured, idle float64) Amount {
	a := Amount{Seconds: seconds}
	a.Dollars, a.Unpriced = p.Machine.of(seconds)
	a.DiskDollars, a.DiskUnpriced = p.Disk.of(seconds)
	a.AddressDollars, a.AddressUnpriced = p.Address.of(seconds)
	a.Measured = math.Round(seconds * measured) // fewer bytes
	a.IdleDollars = a.Dollars * measured * idle
	return a
}

// Key says whom money was spent for, and on what.
type Key struct {
	// Namespace is NoPod for a cell without a pod.
	Namespace string `json:"n,omitempty"`
	// Owner is the kind and name of the pod's controller, such as Deployment/web, or of
	// the pool of a cell without a pod; empty for a pod without one.
	Owner string `json:"o,omitempty"`
	Pod   string `json:"p,omitempty"`
	// Labels are those of the pod that are kept, as Labels writes them.
	Labels       string `json:"l,omitempty"`
	InstanceType string `json:"t,omitempty"`
	// LaunchType is on-demand, spot or dedicated.
	LaunchType string `json:"m,omitempty"`
}

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Pod, b.Pod),
		cmp.Compare(a.Labels, b.Labels), cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.LaunchType, b.LaunchType))
}

// Entry is what one key has spent.
type Entry struct {
	Key
	Runs []Run `json:"r"`
}

// Run is what was spent on each of some days in a row.
type Run struct {
	First Day `json:"d"`
	// More are the days after the first.
	More int `json:"n,omitempty"`
	Amount
}

// Of is the entry of a cell that has run for some seconds from a time on. What it used is
// spread evenly over them.
func Of(s Key, from time.Time, seconds float64, price Price, use Use) Entry {
	e := Entry{Key: s}
	const whole = 24 * 60 * 60
	if seconds <= 0 {
		return e
	}
	measured, idle := min(max(use.Measured/seconds, 0), 1), use.idleShare()
	of := func(seconds float64) Amount { return price.of(seconds, measured, idle) }
	day := DayOf(from)
	if first := min(seconds, (day + 1).Begins().Sub(from).Seconds()); first > 0 {
		e.Runs, seconds = append(e.Runs, Run{First: day, Amount: of(first)}), seconds-first
	}
	if days := int(seconds / whole); days > 0 {
		e.Runs, seconds = append(e.Runs, Run{First: day + 1, More: days - 1, Amount: of(whole)}), seconds-whole*float64(days)
		day += Day(days)
	}
	if seconds > 0 {
		e.Runs = append(e.Runs, Run{First: day + 1, Amount: of(seconds)})
	}
	return e
}

// Each calls f for what was spent on each day from one to another, the last included.
func (e Entry) Each(first, last Day, f func(Day, Amount)) {
	for _, r := range e.Runs {
		for d := max(first, r.First); d <= min(last, r.First+Day(r.More)); d++ {
			f(d, r.Amount)
		}
	}
}

// Total is what was spent on all days.
func (e Entry) Total() (sum Amount) {
	for _, r := range e.Runs {
		sum = sum.Plus(r.times(1 + r.More))
	}
	return sum
}

// runs are those of what was spent by day.
func runs(days map[Day]Amount) (all []Run) {
	var last *Run
	for _, d := range slices.Sorted(maps.Keys(days)) {
		if last != nil && d == last.First+Day(last.More)+1 && last.Amount == days[d] {
			last.More++
			continue
		}
		all = append(all, Run{First: d, Amount: days[d]})
		last = &all[len(all)-1]
	}
	return all
}

// Sum has one entry for each key, in order, and none of days before the first.
func Sum(entries []Entry, first Day) []Entry {
	days := map[Key]map[Day]Amount{}
	var keys []Key
	for _, e := range entries {
		if days[e.Key] == nil {
			days[e.Key] = map[Day]Amount{}
			keys = append(keys, e.Key)
		}
		by := days[e.Key]
		e.Each(first, math.MaxInt32, func(d Day, a Amount) { by[d] = by[d].Plus(a) })
	}
	slices.SortFunc(keys, compare)
	sums := make([]Entry, 0, len(keys))
	for _, s := range keys {
		if r := runs(days[s]); len(r) > 0 {
			sums = append(sums, Entry{Key: s, Runs: r})
		}
	}
	return sums
}

// coarser are the ways in which keys are summed, one after the other: pods with their
// owner, owners with their namespace, namespaces, types.
var coarser = []func(Key) Key{
	func(s Key) Key {
		if s.Pod != "" {
			s.Pod = Others
		}
		return s
	},
	func(s Key) Key {
		s.Owner, s.Pod, s.Labels = Others, Others, ""
		return s
	},
	func(s Key) Key {
		s.Namespace, s.Owner, s.Pod, s.Labels = Others, Others, Others, ""
		return s
	},
	func(s Key) Key {
		return Key{
			Namespace:    Others,
			Owner:        Others,
			Pod:          Others,
			InstanceType: Others,
			LaunchType:   s.LaunchType,
		}
	},
}

// Compact sums entries, and sums them further until they have at most so many bytes as JSON:
// half of the pods at a time, those that have spent least, then the same of owners, of
// namespaces and of types. Nothing is lost of days from the first on.
func Compact(entries []Entry, first Day, most int) ([]Entry, error) {
	entries = Sum(entries, first)
	for _, coarse := range coarser {
		for {
			data, err := json.Marshal(entries)
			if err != nil {
				return nil, fmt.Errorf("write what was spent: %w", err)
			}
			if len(data) <= most {
				return entries, nil
			}
			var fine []*Entry
			for i := range entries {
				if coarse(entries[i].Key) != entries[i].Key {
					fine = append(fine, &entries[i])
				}
			}
			if len(fine) == 0 {
				break
			}
			totals := make(map[*Entry]Amount, len(fine))
			for _, e := range fine {
				totals[e] = e.Total()
			}
			slices.SortStableFunc(fine, func(a, b *Entry) int {
				return cmp.Or(cmp.Compare(totals[a].Known(), totals[b].Known()), cmp.Compare(totals[a].Seconds, totals[b].Seconds))
			})
			for _, e := range fine[:(len(fine)+1)/2] {
				e.Key = coarse(e.Key)
			}
			entries = Sum(entries, first)
		}
	}
	return entries, nil
}
