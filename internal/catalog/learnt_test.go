package catalog

import (
	"encoding/json"
	"fmt"
	"testing"
)

const mib = 1 << 20

func learnt(t *testing.T, image string, memory ...int64) Learnt {
	t.Helper()
	var l Learnt
	for _, m := range memory {
		l, _ = l.With("large", image, Resources{MilliCPU: 2000, MemoryBytes: m * mib})
	}
	return l
}

func TestWhatMachinesHaveIsLearntOfSeveralThatAgree(t *testing.T) {
	large := InstanceType{
		Name:        "large",
		MilliCPU:    2000,
		MemoryBytes: 8192 * mib,
		UsableBytes: 7946 * mib,
	}
	types := []InstanceType{large, {Name: "other", MemoryBytes: mib}}
	for name, c := range map[string]struct {
		machines []int64
		want     int64 // MiB
	}{
		"none":                         {nil, 7946},
		"two say nothing yet":          {[]int64{7800, 7800}, 7946},
		"three do":                     {[]int64{7800, 7810, 7790}, 7800},
		"more than the model says":     {[]int64{8000, 8000, 8000}, 8000},
		"never more than is promised":  {[]int64{9000, 9000, 9000}, 8192},
		"one lies low":                 {[]int64{7800, 7800, 1}, 7800},
		"two of five lie":              {[]int64{1, 7800, 7800, 1, 7800}, 7800},
		"two of five lie high":         {[]int64{8192, 7800, 7800, 8192, 7800}, 7800},
		"all lie, as far as they may":  {[]int64{1, 1, 1, 1, 1}, 6144},
		"those before the last five":   {[]int64{1, 1, 1, 7800, 7800, 7800, 7800, 7800}, 7800},
		"nothing is no machine":        {[]int64{7800, 7800, 0}, 7946},
		"the lower one of two and two": {[]int64{7700, 7700, 7900, 7900}, 7700},
	} {
		got := learnt(t, "a", c.machines...).Apply(types, "a")
		if got[0].SeenBytes() != c.want*mib || got[1].SeenBytes() != mib {
			t.Errorf("%s: %d MiB, want %d", name, got[0].SeenBytes()/mib, c.want)
		}
		if other := learnt(t, "a", c.machines...).Apply(types, "b"); other[0].SeenBytes() != 7946*mib {
			t.Errorf("%s: with another image %d MiB", name, other[0].SeenBytes()/mib)
		}
	}
	if !types[0].Learnt.None() {
		t.Error("the catalogue was changed")
	}
}

func TestCPUsThatMachinesDoNotHaveAreNotCounted(t *testing.T) {
	for had, want := range map[int64]int64{4000: 4000, 2000: 2000, 1000: 2000, 8000: 4000} {
		var l Learnt
		for range agreeing {
			l, _ = l.With("large", "", Resources{MilliCPU: had, MemoryBytes: 8192 * mib})
		}
		got := l.Apply([]InstanceType{{Name: "large", MilliCPU: 4000, MemoryBytes: 8192 * mib}}, "")[0].SustainedMilliCPU()
		if got != want {
			t.Errorf("machines with %d: %d, want %d", had, got, want)
		}
	}
	burst := InstanceType{MilliCPU: 2000, BaselineMilliCPU: 400, Learnt: Resources{MilliCPU: 1000, MemoryBytes: mib}}
	if got := burst.SustainedMilliCPU(); got != 400 {
		t.Errorf("a baseline of 400 sustains %d", got)
	}
}

// What is learnt is written when it changes, and stays small.
func TestWhatIsLearntIsBoundedAndChangesOnlyIfItIsNew(t *testing.T) {
	var l Learnt
	news := 0
	for range 20 {
		var is bool
		if l, is = l.With("large", "", Resources{MilliCPU: 2000, MemoryBytes: 7800*mib + int64(news)*1024}); is {
			news++
		}
	}
	if news != lastMachines {
		t.Errorf("20 equal machines were news %d times, want %d", news, lastMachines)
	}
	for n := range 3 * mostLearnt {
		for range lastMachines {
			name := fmt.Sprintf("type-of-a-long-name-%d.metal-48xlarge", n)
			l, _ = l.With(name, "0123456789abcdef", Resources{MilliCPU: mostMilliCPU, MemoryBytes: mostMemory})
		}
	}
	data, err := json.Marshal(l)
	if err != nil || len(l) != mostLearnt || len(data) > 512<<10 {
		t.Errorf("%d types in %d bytes, %v", len(l), len(data), err)
	}
	if at := l.of("large", ""); at >= 0 {
		t.Error("what was learnt first is not forgotten first")
	}
}

// What is news has all pods placed anew, and is stored: not each machine of a burst is.
func TestMachinesThatChangeNothingAreNoNews(t *testing.T) {
	var l Learnt
	for i, m := range []struct {
		memory int64 // MiB
		news   bool
	}{
		{7800, true}, {7800, true}, {7801, true}, {7800, true}, {7800, true}, // as many as are kept
		{7801, false}, {7800, false}, {7800, false}, {7800, false},
		{7700, false}, {7700, false}, {7700, true}, // now it is another
		{7700, false},
	} {
		var news bool
		if l, news = l.With("large", "a", Resources{MilliCPU: 2000, MemoryBytes: m.memory * mib}); news != m.news {
			t.Errorf("machine %d, of %d MiB: news is %t", i+1, m.memory, news)
		}
	}
	if got := l.Apply([]InstanceType{{Name: "large", MilliCPU: 2000, MemoryBytes: 8192 * mib}}, "a")[0].SeenBytes(); got != 7700*mib {
		t.Errorf("it is taken to have %d MiB", got/mib)
	}
}
