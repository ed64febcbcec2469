package capacity

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/offering"
	testclock "k8s.io/utils/clock/testing"
)

var start = time.Unix(1000, 0).UTC()

var m5 = offering.Key{InstanceType: "m5.large", Zone: "a", Subnet: "s1"}

func keyOf(instanceType, zone, subnet string, spot bool) offering.Key {
	return offering.Key{InstanceType: instanceType, Zone: zone, Subnet: subnet, Spot: spot}
}

// only is the shortage of exactly one offering.
func only(o offering.Key) Shortage {
	return Shortage{InstanceType: o.InstanceType, Zone: o.Zone, Subnet: o.Subnet, Spot: new(o.Spot)}
}

func TestAnOfferingIsUnavailableForTheCooldownOnly(t *testing.T) {
	clk := testclock.NewFakePassiveClock(start)
	s := New(clk)
	if s.Unavailable(m5) {
		t.Error("an offering that nobody marked is unavailable")
	}
	until := s.Mark(only(m5))
	if want := start.Add(Cooldown); !until.Equal(want) {
		t.Errorf("Mark = %v, want %v", until, want)
	}
	clk.SetTime(until.Add(-time.Nanosecond))
	if !s.Unavailable(m5) {
		t.Error("available again before the cooldown is over")
	}
	clk.SetTime(until)
	if s.Unavailable(m5) {
		t.Error("still unavailable after the cooldown")
	}
	if list := s.List(); len(list) != 0 {
		t.Errorf("List = %+v after the cooldown", list)
	}
}

func TestAShortageHoldsWhereItSays(t *testing.T) {
	for name, c := range map[string]struct {
		shortage Shortage
		in, out  []offering.Key
	}{
		"one offering": {Shortage{InstanceType: "m5.large", Zone: "a", Subnet: "s1", Spot: new(true)},
			[]offering.Key{keyOf("m5.large", "a", "s1", true)},
			[]offering.Key{keyOf("m5.large", "a", "s1", false), keyOf("m5.large", "b", "s1", true),
				keyOf("c5.large", "a", "s1", true),
				keyOf("m5.large", "a", "s2", true), keyOf("m5.large", "a", "", true)}},
		"a type in a zone, in any subnet": {Shortage{InstanceType: "m5.large", Zone: "a", Spot: new(false)},
			[]offering.Key{keyOf("m5.large", "a", "s1", false), keyOf("m5.large", "a", "s2", false),
				keyOf("m5.large", "a", "", false)},
			[]offering.Key{keyOf("m5.large", "a", "s1", true), keyOf("m5.large", "b", "s1", false),
				keyOf("m5.xlarge", "a", "s1", false)}},
		"a full subnet": {Shortage{Subnet: "s1"},
			[]offering.Key{keyOf("m5.large", "a", "s1", false), keyOf("c5.large", "a", "s1", true)},
			[]offering.Key{keyOf("m5.large", "a", "s2", false), keyOf("m5.large", "a", "", false)}},
		"the quota of spot": {Shortage{Spot: new(true)},
			[]offering.Key{keyOf("m5.large", "a", "s1", true), keyOf("c5.large", "b", "", true)},
			[]offering.Key{keyOf("m5.large", "a", "s1", false)}},
		"a type everywhere": {Shortage{InstanceType: "m5.large"},
			[]offering.Key{keyOf("m5.large", "a", "s1", true), keyOf("m5.large", "b", "", false)},
			[]offering.Key{keyOf("m5.xlarge", "a", "s1", true)}},
		"a zone": {Shortage{Zone: "a"},
			[]offering.Key{keyOf("m5.large", "a", "s1", true), keyOf("c5.large", "a", "", false)},
			[]offering.Key{keyOf("m5.large", "b", "s1", true), keyOf("m5.large", "", "", true)}},
		"everything": {Shortage{}, []offering.Key{{}, keyOf("m5.large", "a", "s1", true)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testclock.NewFakePassiveClock(start))
			s.Mark(c.shortage)
			for _, o := range c.in {
				if !s.Unavailable(o) {
					t.Errorf("%+v is available", o)
				}
			}
			for _, o := range c.out {
				if s.Unavailable(o) {
					t.Errorf("%+v is unavailable", o)
				}
			}
		})
	}
}

// TestUnavailableIsWhatAnyShortageSays compares with a plain look at every shortage,
// over random histories of marks, restarts and time.
func TestUnavailableIsWhatAnyShortageSays(t *testing.T) {
	in, out := 0, 0
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		words := func(prefix string) string { return []string{"", prefix + "1", prefix + "2"}[rng.IntN(3)] }
		clk := testclock.NewFakePassiveClock(start)
		s := New(clk)
		var model []Shortage
		for range 60 {
			clk.SetTime(clk.Now().Add(time.Duration(rng.IntN(60)) * time.Second))
			switch rng.IntN(6) {
			case 0:
				again := New(clk)
				again.Load(s.List())
				s = again
			case 1, 2:
				mark := Shortage{InstanceType: words("t"), Zone: words("z"), Subnet: words("s")}
				if n := rng.IntN(3); n > 0 {
					mark.Spot = new(n == 1)
				}
				mark.Until = s.Mark(mark)
				model = append(model, mark)
			}
			for range 10 {
				o := offering.Key{InstanceType: words("t"), Zone: words("z"), Subnet: words("s"), Spot: rng.IntN(2) == 0}
				want := false
				for _, m := range model {
					matches := func(of, it string) bool { return of == "" || of == it }
					want = want || clk.Now().Before(m.Until) && matches(m.InstanceType, o.InstanceType) && matches(m.Zone, o.Zone) &&
						matches(m.Subnet, o.Subnet) && (m.Spot == nil || *m.Spot == o.Spot)
				}
				if got := s.Unavailable(o); got != want {
					t.Fatalf("seed %d: Unavailable(%+v) = %t, want %t, with %+v", seed, o, got, want, s.List())
				}
				if want {
					in++
				} else {
					out++
				}
			}
		}
	}
	if in < 1000 || out < 1000 {
		t.Errorf("only %d unavailable and %d available were compared", in, out)
	}
}

func TestMarkingAgainStartsTheCooldownAgain(t *testing.T) {
	clk := testclock.NewFakePassiveClock(start)
	s := New(clk)
	first := s.Mark(only(m5))
	clk.SetTime(first.Add(-time.Second))
	s.Mark(only(m5))
	clk.SetTime(first.Add(time.Second))
	if !s.Unavailable(m5) {
		t.Error("the second mark did not extend the first")
	}
}

func TestWhatIsOverIsForgotten(t *testing.T) {
	clk := testclock.NewFakePassiveClock(start)
	s := New(clk)
	s.Mark(Shortage{Subnet: "s1"})
	for _, zone := range []string{"a", "b", "c"} {
		s.Mark(Shortage{InstanceType: "m5.large", Zone: zone})
	}
	clk.SetTime(start.Add(Cooldown))
	s.Mark(only(m5))
	if len(s.marked) != 1 {
		t.Errorf("%d shortages are kept, want the last one only", len(s.marked))
	}
	if got, want := s.shapes.Load(), uint32(1)<<(hasType|hasZone|hasSubnet|hasCapacityType); got != want {
		t.Errorf("shapes %b are looked up, want %b", got, want)
	}
}

func TestAListIsInOrderAndOutlivesARestart(t *testing.T) {
	clk := testclock.NewFakePassiveClock(start)
	s := New(clk)
	s.Mark(Shortage{InstanceType: "m5.large", Zone: "a", Spot: new(true), Why: "spot"})
	s.Mark(Shortage{InstanceType: "c5.large", Zone: "b"})
	clk.SetTime(start.Add(time.Minute))
	s.Mark(Shortage{Subnet: "s1", Why: "no free addresses"})
	s.Mark(Shortage{InstanceType: "m5.large", Zone: "a", Spot: new(false)})
	s.Mark(Shortage{InstanceType: "m5.large", Zone: "a"})
	early, late := start.Add(Cooldown), start.Add(Cooldown+time.Minute)
	want := []Shortage{
		{Subnet: "s1", Until: late, Why: "no free addresses"},
		{InstanceType: "c5.large", Zone: "b", Until: early},
		{InstanceType: "m5.large", Zone: "a", Until: late},
		{InstanceType: "m5.large", Zone: "a", Spot: new(false), Until: late},
		{InstanceType: "m5.large", Zone: "a", Spot: new(true), Until: early, Why: "spot"},
	}
	if got := s.List(); !reflect.DeepEqual(got, want) {
		t.Errorf("List = %+v\nwant %+v", got, want)
	}

	stored, err := json.Marshal(s.List())
	if err != nil {
		t.Fatal(err)
	}
	var read []Shortage
	if err := json.Unmarshal(stored, &read); err != nil {
		t.Fatal(err)
	}
	clk.SetTime(early)
	again := New(clk)
	again.Load(read)
	var left []Shortage
	for _, w := range want {
		if w.Until == late {
			left = append(left, w)
		}
	}
	if got := again.List(); !reflect.DeepEqual(got, left) {
		t.Errorf("after a restart List = %+v\nwant %+v", got, left)
	}
}

func TestAQuotaOfCPUIsNotShortForSmallerTypes(t *testing.T) {
	clk := testclock.NewFakePassiveClock(start)
	s := New(clk)
	of := func(cpu int64) offering.Key {
		return offering.Key{InstanceType: "t", Zone: "a", Family: "f", MilliCPU: cpu}
	}
	mark := func(least int64) { s.Mark(Shortage{Family: "f", Spot: new(false), LeastMilliCPU: least}) }
	check := func(when string, want int64) {
		t.Helper()
		again := New(clk)
		again.Load(s.List())
		for _, s := range []*Shortages{s, again} {
			for _, cpu := range []int64{1000, 2000, 4000, 8000} {
				if got := s.Unavailable(of(cpu)); got != (cpu >= want) {
					t.Errorf("%s a type with %d is short %t, want from %d", when, cpu, got, want)
				}
			}
		}
	}
	mark(4000)
	check("at first", 4000)
	clk.SetTime(start.Add(time.Minute))
	mark(2000)
	check("once a smaller one did not fit", 2000)
	mark(8000) // which was under way
	check("after a larger one, too", 2000)
	clk.SetTime(start.Add(Cooldown + time.Minute))
	mark(4000)
	check("in the next time", 4000)
	mark(0)
	check("once it is of instances", 0)
}

func TestLoadTrustsNoTimeFurtherAwayThanTheCooldown(t *testing.T) {
	clk := testclock.NewFakePassiveClock(start)
	s := New(clk)
	s.Load([]Shortage{{InstanceType: "m5.large", Until: start.Add(24 * time.Hour)}, {InstanceType: "c5.large", Until: start}})
	if want := []Shortage{{InstanceType: "m5.large", Until: start.Add(Cooldown)}}; !reflect.DeepEqual(s.List(), want) {
		t.Errorf("List = %+v, want %+v", s.List(), want)
	}
}

func TestLoadDoesNotShortenWhatWasMarkedSince(t *testing.T) {
	clk := testclock.NewFakePassiveClock(start)
	s := New(clk)
	until := s.Mark(Shortage{Zone: "a", Why: "new"})
	s.Load([]Shortage{{Zone: "a", Until: start.Add(time.Second), Why: "old"}})
	if want := []Shortage{{Zone: "a", Until: until, Why: "new"}}; !reflect.DeepEqual(s.List(), want) {
		t.Errorf("List = %+v, want %+v", s.List(), want)
	}
}

func TestConcurrentUse(t *testing.T) {
	s := New(testclock.NewFakePassiveClock(start))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			o := offering.Key{InstanceType: "m5.large", Zone: string(rune('a' + i))}
			s.Mark(only(o))
			if !s.Unavailable(o) {
				t.Errorf("%+v is not unavailable after Mark", o)
			}
			s.Load(s.List())
		})
	}
	wg.Wait()
	if n := len(s.List()); n != 8 {
		t.Errorf("%d shortages, want 8", n)
	}
}

// BenchmarkUnavailable is the price of one question, with nothing marked and with as
// many marks as three minutes of refused launches leave.
func BenchmarkUnavailable(b *testing.B) {
	for _, marks := range []int{0, 300} {
		b.Run(fmt.Sprintf("marks=%d", marks), func(b *testing.B) {
			s := New(testclock.NewFakePassiveClock(start))
			for i := range marks {
				s.Mark(Shortage{InstanceType: fmt.Sprintf("f%d.large", i/3), Zone: string(rune('a' + i%3)), Spot: new(false)})
			}
			if marks > 0 {
				s.Mark(Shortage{Subnet: "full"})
			}
			b.ReportAllocs()
			for b.Loop() {
				if s.Unavailable(m5) {
					b.Fatal("unavailable")
				}
			}
		})
	}
}

// What is short for all is no word about hosts of one's own, but a quota, and a subnet's addresses, count for both.
func TestAPoolRunsOutByItself(t *testing.T) {
	hosts := m5
	hosts.Pool, hosts.Family = "dedicated", "standard"
	shared, paid := hosts, hosts
	shared.Pool, paid.Pool = "", "cr-1"
	for name, c := range map[string]struct {
		short          Shortage
		shared, inPool bool
	}{
		"for all":      {Shortage{InstanceType: "m5.large", Zone: "a", Spot: new(false)}, true, false},
		"on hosts":     {Shortage{InstanceType: "m5.large", Zone: "a", Spot: new(false), Pool: "dedicated"}, false, true},
		"a quota":      {Shortage{Family: "standard", Spot: new(false)}, true, true},
		"no addresses": {Shortage{Zone: "a", Subnet: "s1"}, true, true},
		"a quota, of a pool in words that say nothing": {Shortage{Family: "standard", Pool: "dedicated"}, true, true},
	} {
		s := New(testclock.NewFakePassiveClock(start))
		s.Mark(c.short)
		again := New(testclock.NewFakePassiveClock(start))
		again.Load(s.List())
		if is := name == "no addresses"; s.Unavailable(paid) != is {
			t.Errorf("%s: what is reserved is unavailable: %t, want %t", name, !is, is)
		}
		for _, s := range []*Shortages{s, again} {
			if s.Unavailable(shared) != c.shared || s.Unavailable(hosts) != c.inPool {
				t.Errorf("%s: the shared is unavailable %t, the pool %t: want %t and %t", name, s.Unavailable(shared), s.Unavailable(hosts), c.shared,
					c.inPool)
			}
		}
	}
}
