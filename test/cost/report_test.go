package main

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

func TestThePageIsThatOfTheCatalogue(t *testing.T) {
	want, err := report()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/cost.md is not what make cost-report writes")
	}
}

func kind(milliCPU, memory int64, price float64) catalog.InstanceType {
	return catalog.InstanceType{Name: "k", Arch: "amd64", MilliCPU: milliCPU, MemoryBytes: memory, UsableBytes: memory,
		Offerings: []catalog.PurchaseOption{{Zone: "z", PricePerHour: price}}}
}

func TestTheBoundIsTheBestMix(t *testing.T) {
	m := market{arch: "amd64", types: []catalog.InstanceType{kind(1000, 2*gib, 1), kind(1000, 8*gib, 1.5), kind(1000, 4*gib, 1.4)}}
	for _, c := range []struct {
		pods []shape
		want float64
	}{
		{[]shape{{4000, gib}}, 4},             // only CPU is short
		{[]shape{{1000, 16 * gib}}, 3},        // only memory is
		{[]shape{{2000, 10 * gib}}, 1 + 1.5},  // one of each; two of the third have too little
		{[]shape{{500, gib}, {500, gib}}, 1},  // in sum
		{[]shape{{2000, 8 * gib}}, 4.0/3 + 1}, // in parts
	} {
		if got := bound(m, c.pods); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v: %v, want %v", c.pods, got, c.want)
		}
	}
}

func TestNodesArePaidUntilTheyAreIdleForLong(t *testing.T) {
	kinds := []node{{InstanceType: kind(4000, 16*gib, 0), price: 6, milliCPU: 4000, memory: 16 * gib},
		{InstanceType: kind(8000, 32*gib, 0), price: 12, milliCPU: 8000, memory: 32 * gib}}
	at := func(from, takes time.Duration, milliCPU int64) run {
		return run{shape{milliCPU, gib}, from * time.Minute, takes * time.Minute}
	}
	for about, c := range map[string]struct {
		runs []run
		want float64 // dollars; a small node costs 0.1 a minute
		used float64
		left int
	}{
		"from the start to the end":     {[]run{at(0, 60, 4000)}, 6, 1, 0},
		"two on one":                    {[]run{at(0, 60, 2000), at(0, 60, 2000)}, 6, 1, 0},
		"two on two":                    {[]run{at(0, 60, 3000), at(0, 60, 3000)}, 12, 0.75, 0},
		"on a larger one":               {[]run{at(0, 60, 5000)}, 12, 5.0 / 8, 0},
		"on none":                       {[]run{at(0, 60, 4000), at(0, 60, 9000)}, 6, 1, 1},
		"a boot, the pod, ten minutes":  {[]run{at(10, 9, 4000)}, 2, 0.45, 0},
		"the next finds it still there": {[]run{at(10, 9, 4000), at(25, 9, 4000)}, 3.4, 18.0 / 34, 0},
		"the next comes too late":       {[]run{at(10, 9, 4000), at(31, 9, 4000)}, 4, 0.45, 0},
	} {
		got, used, left := packed(kinds, 0, c.runs, time.Hour)
		if math.Abs(got-c.want) > 1e-9 || math.Abs(used-c.used) > 1e-9 || len(left) != c.left {
			t.Errorf("%s: %v dollars, %v of it used, %d left, want %+v", about, got, used, len(left), c)
		}
	}
}

func TestTheWorkloadFollowsFromItsSeed(t *testing.T) {
	a, b := day(), day()
	if len(a) < 1000 || len(a) != len(b) {
		t.Fatalf("%d pods, and %d", len(a), len(b))
	}
	for i, r := range a {
		if r != b[i] || r.takes < time.Minute || i > 0 && r.at < a[i-1].at || r.at+r.takes > 24*time.Hour {
			t.Errorf("pod %d: %+v, and %+v", i, r, b[i])
		}
	}
}
