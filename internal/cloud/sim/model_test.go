package sim

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/elotl/kip/internal/cloud"
)

// TestRandomHistories runs random calls and events with random knobs against
// what must hold whatever happens. It keeps its own account of each machine,
// from answers and the clock alone.
func TestRandomHistories(t *testing.T) {
	const histories = 600
	ran, met := 0, map[string]int{}
	for ran < histories && !t.Failed() { // -short makes each Check a fifth
		rapid.Check(t, func(rt *rapid.T) {
			ran++
			playHistory(rt, met)
		})
	}
	t.Logf("%d histories: %v", ran, met)
	// The histories must reach each outcome, or they prove nothing.
	for _, what := range []string{"launched", "launched in part", "no capacity", "no quota", "repeated", "interrupted"} {
		if met[what] < 30 {
			t.Errorf("%d histories met %q %d times only", ran, what, met[what])
		}
	}
}

func playHistory(rt *rapid.T, met map[string]int) {
	rapid.SyncTest(rt, func(rt *rapid.T) {
		h := newHistory(rt)
		h.met = met
		defer h.c.Close()
		rt.Repeat(map[string]func(*rapid.T){
			"launch": h.launch, "repeat": h.repeat, "terminate": h.terminate, "stop": h.stop, "start": h.start,
			"vanish": h.vanish, "interrupt": h.interrupt, "pass": h.pass, "capacity": h.capacity,
			"": h.check,
		})
		h.settle(rt)
	})
}

const bounded = 12 // machines of zone z1, before h.capacity changes it

type history struct {
	c      *Cloud
	knobs  Knobs
	clouds []cloud.LaunchRequest // launched, by token
	first  map[string][]string   // the IDs that each token got; "" for none
	paid   map[string]*account
	met    map[string]int
	bound  int // the most that z1 may have held since its bound was last changed
}

// account is what the test believes that a machine is charged.
type account struct {
	price float64
	sum   time.Duration
	since time.Time // zero while it does not run
}

func newHistory(rt *rapid.T) *history {
	seconds := func(label string, most int) Distribution {
		return always(time.Duration(rapid.IntRange(0, most).Draw(rt, label)) * time.Second)
	}
	h := &history{first: map[string][]string{}, paid: map[string]*account{}, bound: bounded}
	h.knobs = Knobs{
		Pending: seconds("pending", 5), AddressDelay: seconds("addresses", 9), Termination: seconds("termination", 9),
		Stopping: seconds("stopping", 9), ListLag: seconds("lag", 9), UnknownFor: seconds("unknown", 3),
		BootTimes:             []BootTime{{Distribution: Distribution{Median: 3 * time.Second, Spread: 2}}},
		StaleLists:            rapid.SampledFrom([]float64{0, 0.5}).Draw(rt, "stale lists"),
		StaleBy:               5 * time.Second,
		Capacity:              []Capacity{{Pool{Zone: "z1"}, bounded}},
		Quotas:                []Quota{{Name: "spot", Spot: pointer(true), Instances: 6}},
		SubnetAddresses:       map[string]int{"s2": 5},
		StoppedKeepsAddresses: rapid.Bool().Draw(rt, "keep addresses"),
	}
	c, err := New(Config{
		Seed: rapid.Uint64().Draw(rt, "seed"), Catalogue: forSale(), Knobs: h.knobs,
		ReuseAddresses: rapid.Bool().Draw(rt, "reuse"),
		ManagementCIDR: mustPrefix("127.0.0.0/26"),
	})
	if err != nil {
		rt.Fatal(err)
	}
	h.c = c
	return h
}

func (h *history) launch(rt *rapid.T) {
	r := request(fmt.Sprint("t", len(h.clouds)), rapid.IntRange(1, 6).Draw(rt, "machines"))
	typ := rapid.SampledFrom(forSale()).Draw(rt, "type")
	o := rapid.SampledFrom(typ.Offerings).Draw(rt, "offering")
	r.InstanceType, r.Zone, r.Subnet = typ.Name, o.Zone, o.Subnet
	if o.Spot {
		r = spot(r)
	}
	got, err := try(ctx, h.c, r)
	if err != nil {
		if !errors.Is(err, cloud.ErrCapacity) && !errors.Is(err, cloud.ErrQuota) {
			rt.Fatal(err)
		}
		if errors.Is(err, cloud.ErrQuota) {
			h.met["no quota"]++
		} else {
			h.met["no capacity"]++
		}
		return
	}
	h.met["launched"]++
	if slices.ContainsFunc(got, func(i cloud.Instance) bool { return i.ID == "" }) {
		h.met["launched in part"]++
	}
	if len(got) != len(r.Machines) || len(ids(got)) == 0 {
		rt.Fatalf("a launch of %d got %+v", len(r.Machines), got)
	}
	h.clouds = append(h.clouds, r)
	for n, i := range got {
		h.first[r.Token] = append(h.first[r.Token], i.ID)
		if i.ID == "" {
			continue
		}
		if h.paid[i.ID] != nil {
			rt.Fatalf("instance %s was launched twice", i.ID)
		}
		if !reflect.DeepEqual(i.Tags, r.Machines[n].Tags) {
			rt.Fatalf("machine %d has the tags %v: want %v", n, i.Tags, r.Machines[n].Tags)
		}
		h.paid[i.ID] = &account{price: o.PricePerHour, since: time.Now()}
	}
}

func (h *history) repeat(rt *rapid.T) {
	if len(h.clouds) == 0 {
		rt.Skip()
	}
	r := rapid.SampledFrom(h.clouds).Draw(rt, "request")
	before := len(h.c.History())
	got, err := try(ctx, h.c, r)
	var all []string
	for _, i := range got {
		all = append(all, i.ID)
	}
	if err != nil || !slices.Equal(all, h.first[r.Token]) || len(h.c.History()) != before {
		rt.Fatalf("a repeated launch got %v, %v: want %v", all, err, h.first[r.Token])
	}
	h.met["repeated"]++
}

// some picks instances, dead ones too.
func (h *history) some(rt *rapid.T) []string {
	all := []string{"i-unknown"}
	for _, r := range h.clouds {
		for _, id := range h.first[r.Token] {
			if id != "" {
				all = append(all, id)
			}
		}
	}
	return rapid.SliceOfN(rapid.SampledFrom(all), 1, 5).Draw(rt, "instances")
}

func (h *history) terminate(rt *rapid.T) { ok(rt, h.c.Terminate(ctx, h.some(rt)...).Err()) }
func (h *history) vanish(rt *rapid.T)    { h.c.Interrupter.Vanish(h.some(rt)[0]) }

func (h *history) interrupt(rt *rapid.T) {
	id := h.some(rt)[0]
	if a := h.paid[id]; a != nil && !a.since.IsZero() {
		h.met["interrupted"]++
	}
	h.c.Interrupter.Interrupt(id)
}

func (h *history) stop(rt *rapid.T) {
	if err := h.c.Stopper.Stop(ctx, h.some(rt)...).Err(); err != nil && !errors.Is(err, cloud.ErrRefused) {
		rt.Fatal(err)
	}
}

func (h *history) start(rt *rapid.T) {
	if err := h.c.Stopper.Start(ctx, h.some(rt)...).Err(); err != nil && !cloud.Refused(err) {
		rt.Fatal(err)
	}
}

func (h *history) capacity(rt *rapid.T) {
	n := rapid.IntRange(0, bounded).Draw(rt, "capacity")
	h.c.SetCapacity(Pool{Zone: "z1"}, n)
	h.bound = max(n, h.holding("z1"))
}

func (h *history) holding(zone string) (n int) {
	for _, i := range h.c.Truth() {
		if i.Zone == zone && h.runs(i) {
			n++
		}
	}
	return n
}

// runs says so of an instance that exists. One that was stopped when it was
// terminated is not paid for.
func (h *history) runs(i Instance) bool {
	return i.State != cloud.Stopped && (i.State != cloud.Terminating || !h.paid[i.ID].since.IsZero())
}

// pass lets some seconds pass, one at a time: the accounts are as fine as that.
func (h *history) pass(rt *rapid.T) {
	for range rapid.IntRange(1, 30).Draw(rt, "seconds") {
		pass(time.Second)
		h.check(rt)
	}
}

func (h *history) check(rt *rapid.T) {
	synctest.Wait()
	now := time.Now()
	addresses := map[any]string{}
	spots, s2 := 0, 0
	existing := map[string]bool{}
	for _, i := range h.c.Truth() {
		existing[i.ID] = true
		if !i.Ended.IsZero() || h.paid[i.ID] == nil {
			rt.Fatalf("%+v should not be", i)
		}
		for _, a := range []any{i.ManagementIP, i.PodIP} {
			if i.ManagementIP.IsValid() && addresses[a] != "" {
				rt.Fatalf("%s and %s have the address %v", i.ID, addresses[a], a)
			}
			addresses[a] = i.ID
		}
		if i.State == cloud.Running && !i.Booted.IsZero() && !i.ManagementIP.IsValid() {
			rt.Fatalf("%+v has booted without an address", i)
		}
		runs := h.runs(i)
		if i.On != runs {
			rt.Fatalf("%+v; it runs: %t", i, runs)
		}
		if runs && i.Spot {
			spots++
		}
		if i.Subnet == "s2" && (runs || h.knobs.StoppedKeepsAddresses) {
			s2++
		}
		a := h.paid[i.ID]
		switch {
		case runs && a.since.IsZero():
			a.since = now
		case !runs && !a.since.IsZero():
			a.sum, a.since = a.sum+now.Sub(a.since), time.Time{}
		}
	}
	for _, i := range h.c.History() {
		if a := h.paid[i.ID]; !i.Ended.IsZero() && !a.since.IsZero() {
			a.sum, a.since = a.sum+i.Ended.Sub(a.since), time.Time{}
		}
		if i.Ended.IsZero() != existing[i.ID] {
			rt.Fatalf("the history has %+v; it exists: %t", i, existing[i.ID])
		}
	}
	if n := h.holding("z1"); n > h.bound || spots > 6 || s2 > 5 {
		rt.Fatalf("z1 holds %d of %d, %d of 6 spot machines run, s2 has given out %d of 5 addresses", n, h.bound, spots, s2)
	}

	var want, got float64
	var wantTime, gotTime time.Duration
	for _, a := range h.paid {
		t := a.sum
		if !a.since.IsZero() {
			t += now.Sub(a.since)
		}
		wantTime += t
		want += t.Hours() * a.price
	}
	launched := 0
	for _, charge := range h.c.Bill() {
		gotTime += charge.Time
		got += charge.Dollars
		launched += charge.Instances
	}
	if gotTime != wantTime || math.Abs(got-want) > 1e-9 || launched != len(h.paid) {
		rt.Fatalf("the bill is for %d instances, %v, %v dollars: want %d, %v, %v", launched, gotTime, got, len(h.paid), wantTime, want)
	}

	l, err := h.c.List(ctx, owner)
	ok(rt, err)
	for _, i := range l.Instances {
		if h.paid[i.ID] == nil {
			rt.Fatalf("the list shows %+v, which was never launched", i)
		}
	}
}

// settle shows that when nothing happens any more, the list is the truth, and
// that all can be ended, which frees all.
func (h *history) settle(rt *rapid.T) {
	ok(rt, h.c.Change(func(k *Knobs) { k.StaleLists = 0 }))
	pass(time.Hour)
	var truth []cloud.Instance
	for _, i := range h.c.Truth() {
		truth = append(truth, i.Instance)
	}
	if l, err := h.c.List(ctx, owner); err != nil || !reflect.DeepEqual(l.Instances, truth) {
		rt.Fatalf("after an hour the list is %+v, %v: want %+v", l, err, truth)
	}
	ok(rt, h.c.Terminate(ctx, ids(truth)...).Err())
	pass(time.Hour)
	if n := len(h.c.Truth()); n != 0 {
		rt.Fatalf("%d exist after their termination", n)
	}
	for o, held := range h.c.holdings.held {
		if *held != (holding{}) {
			rt.Fatalf("%s holds %+v though nothing runs", o, *held)
		}
	}
	for subnet, n := range h.c.holdings.addresses {
		if n != 0 {
			rt.Fatalf("subnet %s misses %d addresses", subnet, n)
		}
	}
	if n := len(h.c.holdings.plan.taken); n != 0 {
		rt.Fatalf("%d addresses are taken though nothing runs", n)
	}
}

// BenchmarkLaunch and BenchmarkList are at the size of the scale benchmark.
func BenchmarkLaunch(b *testing.B) {
	c := newCloud(b, Config{Knobs: Knobs{Capacity: []Capacity{{Pool{}, math.MaxInt}}}})
	n := 0
	for b.Loop() {
		launch(b, c, request(fmt.Sprint(n), cloud.MaxLaunch))
		n++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*cloud.MaxLaunch), "ns/instance")
}

func BenchmarkList(b *testing.B) {
	c := newCloud(b, Config{})
	for n := range 10_000 / cloud.MaxLaunch {
		launch(b, c, request(fmt.Sprint(n), cloud.MaxLaunch))
	}
	for b.Loop() {
		if len(list(b, c)) != 10_000 {
			b.Fatal("short")
		}
	}
}
