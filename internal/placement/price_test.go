package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

// priced are types whose machine, CPU above the baseline, disk and address are paid.
var priced = []catalog.InstanceType{
	{Name: "burst", Arch: "amd64", MilliCPU: 2000, MemoryBytes: 4 << 30, BaselineMilliCPU: 500, CreditPerCPUHour: 0.05,
		Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 0.04}}},
	{Name: "local", Arch: "amd64", MilliCPU: 2000, MemoryBytes: 4 << 30, DiskBytes: 73 << 30,
		Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 0.12}}},
	{Name: "plain", Arch: "amd64", MilliCPU: 2000, MemoryBytes: 4 << 30,
		Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 0.1}, {Zone: "a", Spot: true, Unpriced: true}}},
	{Name: "small", Arch: "amd64", MilliCPU: 100, MemoryBytes: 4 << 30, Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 0.01}}},
}

func TestNoMachineCostsMoreThanThePodSays(t *testing.T) {
	rates := &catalog.Rates{DiskPerGiBMonth: 0.1, AddressPerHour: 0.005}
	for _, c := range []struct {
		most        string
		rates       *catalog.Rates
		annotations []string
		want        string // the types, or a part of the error
	}{
		{"0.2", rates, nil, "plain local burst"},
		{"0.12", nil, nil, "plain burst local"}, // where nothing is paid beside the machine
		{"0.13", rates, nil, "plain local burst"},
		{"0.12", rates, nil, "plain"},
		{"0.115", rates, nil, "plain"}, // exactly: 0.1, a disk for 0.01, an address for 0.005
		{"0.114999", rates, nil, "needs cpu 2: 4 types considered: 1 has too little cpu (largest: small with 100m), " +
			"3 are dearer than the $0.114999 an hour of pod.elotl.co/max-price-per-hour (cheapest: plain for $0.115)"},
		{"0.11", rates, []string{AnnotationPrivateIPOnly, "true"}, "plain"},
		{"0.2", rates, []string{AnnotationVolumeSize, "730Gi"}, "(cheapest: plain for $0.205)"},
		{"0.2", rates, []string{AnnotationVolumeSize, "729Gi", AnnotationSwap, "0.1Gi"}, "(cheapest: plain for $0.205)"},
		{"0.115", rates, []string{AnnotationSwap, "1Gi"}, "dearer than the $0.115 an hour"},
		{"0.12", &catalog.Rates{}, nil, "plain burst local"}, // what is not known is not counted
		{"1", rates, []string{AnnotationLaunchType, "spot"}, "(none has a price that is known)"},
		{"0.1", rates, []string{AnnotationInstanceType, "plain"}, "1 is dearer than the $0.1 an hour"},
	} {
		p := placer(t, priced, Config{DefaultDiskBytes: 73 << 30, Rates: c.rates})
		got, err := p.Offerings(annotated(podOf("cpu=2"), append(c.annotations, AnnotationMaxPrice, c.most)...), nil)
		var names []string
		for _, candidate := range got {
			names = append(names, candidate.InstanceType)
		}
		var none *UnplaceableError
		switch {
		case err != nil && !errors.As(err, &none):
			t.Errorf("%+v: %v", c, err)
		case err != nil && !strings.Contains(err.Error(), c.want), err == nil && strings.Join(names, " ") != c.want:
			t.Errorf("$%s with %+v and %v: %s, %v; want %s", c.most, c.rates, c.annotations, names, err, c.want)
		}
	}
}

func TestWhatIsPaidBesideAMachineIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		rates *catalog.Rates
		want  string
	}{
		"known":   {&catalog.Rates{DiskPerGiBMonth: 0.1, AddressPerHour: 0.005}, "burst 0.075+0.01+0.005 plain 0+0.01+0.005 local 0+0+0.005"},
		"unknown": {&catalog.Rates{}, "burst 0.075+?+? plain 0+?+? local 0+0+?"},
		"nothing": {nil, "burst 0.075+0+0 plain 0+0+0 local 0+0+0"},
	} {
		list, err := placer(t, priced, Config{DefaultDiskBytes: 73 << 30, Rates: c.rates}).Offerings(podOf("cpu=2"), nil)
		if err != nil {
			t.Fatal(err)
		}
		text := func(price float64, unpriced bool) string {
			if unpriced {
				return "?"
			}
			return fmt.Sprintf("%.4g", price)
		}
		var got []string
		for _, p := range []string{"burst", "plain", "local"} {
			for _, l := range list {
				if l.InstanceType == p {
					got = append(got, fmt.Sprintf("%s %.4g+%s+%s", p, l.BurstPerHour, text(l.DiskPerHour, l.DiskUnpriced),
						text(l.AddressPerHour, l.AddressUnpriced)))
				}
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A disk that has to be paid counts against a type that has none of its own.
func TestWhatIsPaidBesideAMachineCountsInTheOrder(t *testing.T) {
	for perMonth, want := range map[float64]string{0.1: "plain 0.115 local 0.125 burst 0.13", 0.25: "local 0.125 plain 0.13 burst 0.145"} {
		p := placer(t, priced, Config{DefaultDiskBytes: 73 << 30, Rates: &catalog.Rates{DiskPerGiBMonth: perMonth, AddressPerHour: 0.005}})
		list, err := rank(p, podOf("cpu=2"), nil)
		var got []string
		for _, c := range list {
			got = append(got, fmt.Sprintf("%s %.4g", c.InstanceType, c.cost))
		}
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("at $%v a GB and month: %v, %v; want %s", perMonth, got, err, want)
		}
	}
}

func TestASpotOfferingThatWasTakenBackCountsAsDearer(t *testing.T) {
	types := []catalog.InstanceType{{Name: "one", Arch: "amd64", MilliCPU: 1000, MemoryBytes: 1 << 30, Offerings: []catalog.PurchaseOption{
		{Zone: "a", Spot: true, PricePerHour: 0.1, Risk: 0.2}, {Zone: "b", Spot: true, PricePerHour: 0.11},
	}}}
	pod := annotated(podOf("cpu=1"), AnnotationLaunchType, "spot", AnnotationMaxPrice, "0.115")
	got, err := placer(t, types, Config{}).Offerings(pod, nil)
	const why = "; counts as 20 % dearer, since such instances were taken back there"
	if err != nil || len(got) != 2 || got[0].Zone != "b" || strings.Contains(got[0].Reason, "dearer") ||
		!strings.HasSuffix(got[1].Reason, why) || strings.TrimSuffix(got[1].Reason, why) != got[0].Reason {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWhatIsRuledOutIsCountedToTheLastType(t *testing.T) {
	p := placer(t, priced, Config{})
	out := func(o offering.Key) bool { return o.InstanceType == "local" }
	got, err := p.Choose(podOf("cpu=2"), out)
	const want = "[{1 has too little cpu (largest: small with 100m)} {1 has no capacity now}]"
	if err != nil || got.Types != 2 || fmt.Sprint(got.RuledOut) != want {
		t.Errorf("%d left, %v, %v; want 2 left, %s", got.Types, got.RuledOut, err, want)
	}
	if _, err := p.Choose(annotated(podOf(), AnnotationMaxPrice, "x"), nil); err == nil {
		t.Error("an annotation that is not valid is no error")
	}
}

// A dedicated instance has no price that is known: the order is that of the same types on demand,
// so that a machine with accelerators is not taken for one of the same size without.
func TestWhatHasNoPriceIsOrderedByThatOfItsLike(t *testing.T) {
	dedicated := func(name string, price float64) catalog.InstanceType {
		return catalog.InstanceType{Name: name, Arch: "amd64", MilliCPU: 4000, MemoryBytes: 16 << 30, Offerings: []catalog.PurchaseOption{
			{Zone: "a", PricePerHour: 1}, {Zone: "a", Dedicated: true, Unpriced: true, OrderedAt: price}}}
	}
	p := placer(t, []catalog.InstanceType{dedicated("g4dn.xlarge", 0.526), dedicated("m5.xlarge", 0.192), dedicated("a.new", 0)}, Config{})
	list, err := p.Offerings(annotated(podOf("cpu=4"), AnnotationLaunchType, "dedicated"), nil)
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	for i, want := range []struct{ name, reason string }{
		{"m5.xlarge", "cheapest of 3 types that fit cpu 4; its price is not known, and it is ordered by that of $0.192 an hour on demand"},
		{"g4dn.xlarge", "2nd cheapest of 3 types that fit cpu 4; its price is not known, and it is ordered by that of $0.526 an hour on demand"},
		{"a.new", "taken by its size, since its price is not known, of 3 types that fit cpu 4"},
	} {
		if list[i].InstanceType != want.name || list[i].Reason != want.reason {
			t.Errorf("%d: %s: %q, want %s: %q", i, list[i].InstanceType, list[i].Reason, want.name, want.reason)
		}
	}
	_, err = p.Offerings(annotated(podOf("cpu=4"), AnnotationLaunchType, "dedicated", AnnotationMaxPrice, "10"), nil)
	if err == nil || !strings.Contains(err.Error(), "none has a price that is known") {
		t.Errorf("within a bound: %v", err)
	}
}

func TestOnlyTheDedicatedAreLeftOutWhereTheyAreShort(t *testing.T) {
	both := catalog.InstanceType{Name: "m5.large", Arch: "amd64", MilliCPU: 2000, MemoryBytes: 8 << 30, Offerings: []catalog.PurchaseOption{
		{Zone: "a", PricePerHour: 1}, {Zone: "a", Dedicated: true, PricePerHour: 2}}}
	p := placer(t, []catalog.InstanceType{both}, Config{})
	short := func(o offering.Key) bool { return o.Pool == catalog.Dedicated }
	list, err := p.Offerings(annotated(podOf("cpu=1"), AnnotationLaunchType, "dedicated,on-demand"), short)
	if err != nil || len(list) != 1 || list[0].Dedicated {
		t.Errorf("%+v, %v: want the shared one alone", list, err)
	}
}

// reservedNames are the types of candidates and the reservations that they are in, in their order.
func reservedNames(list []offering.Offering) string {
	var all []string
	for _, one := range list {
		all = append(all, one.InstanceType+"/"+one.Reservation)
	}
	return strings.Join(all, " ")
}

// GPUs that are paid for in advance are not for pods that have no use for them.
func TestReservedDevicesAreForThoseWhoAskForThem(t *testing.T) {
	const mem = 8 << 30
	cheap := catalog.InstanceType{Name: "cheap", Arch: "amd64", MilliCPU: 2000, MemoryBytes: mem, Offerings: []catalog.PurchaseOption{
		{Zone: "a", PricePerHour: 0.01}}}
	gpus := catalog.InstanceType{Name: "gpus", Arch: "amd64", MilliCPU: 4000, MemoryBytes: mem,
		GPUs: []catalog.GPU{{Model: "A10G", Count: 1}}, Offerings: []catalog.PurchaseOption{
			{Zone: "a", PricePerHour: 3}, {Zone: "a", Unpriced: true, Reservation: "cr-block"}}}
	p := placer(t, []catalog.InstanceType{cheap, gpus}, Config{})
	for name, c := range map[string]struct {
		asks        string
		annotations []string
		want        string
	}{
		"a pod without":       {"cpu=1", nil, "cheap/ gpus/"},
		"a pod with one":      {"cpu=1,nvidia.com/gpu=1", nil, "gpus/cr-block gpus/"},
		"one that names it":   {"cpu=1", []string{AnnotationInstanceType, "gpus"}, "gpus/cr-block gpus/"},
		"one that names some": {"cpu=1", []string{AnnotationInstanceType, "g*"}, "gpus/cr-block gpus/"},
	} {
		list, err := p.Offerings(annotated(podOf(strings.Split(c.asks, ",")...), c.annotations...), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text := reservedNames(list); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

// A machine in a reservation is paid for already: it comes before all that would be paid besides,
// also where its type costs more. It does not run out with what all accounts share, nor with another.
func TestWhatIsReservedComesFirst(t *testing.T) {
	const mem = 8 << 30
	cheap := catalog.InstanceType{Name: "cheap", Arch: "amd64", MilliCPU: 2000, MemoryBytes: mem, Offerings: []catalog.PurchaseOption{
		{Zone: "a", PricePerHour: 0.01}, {Zone: "a", Spot: true, PricePerHour: 0.001}}}
	dear := catalog.InstanceType{Name: "dear", Arch: "amd64", MilliCPU: 4000, MemoryBytes: mem, Offerings: []catalog.PurchaseOption{
		{Zone: "a", PricePerHour: 3}, {Zone: "a", PricePerHour: 3, Reservation: "cr-1"}, {Zone: "a", PricePerHour: 3, Reservation: "cr-2"},
		{Zone: "b", Unpriced: true, Reservation: "cr-block"}}}
	p := placer(t, []catalog.InstanceType{cheap, dear}, Config{})
	for name, c := range map[string]struct {
		out         []string // pools; "" for what all share
		annotations []string
		want        string
	}{
		"first":                  {nil, nil, "dear/cr-1 dear/cr-2 dear/cr-block cheap/ dear/"},
		"less what is full":      {[]string{"cr-1"}, nil, "dear/cr-2 dear/cr-block cheap/ dear/"},
		"nothing else is there":  {[]string{""}, nil, "dear/cr-1 dear/cr-2 dear/cr-block"},
		"for what it would cost": {nil, []string{AnnotationMaxPrice, "1"}, "cheap/"},
		"after spot that a pod wants first": {nil, []string{AnnotationLaunchType, "spot,on-demand"},
			"cheap/ dear/cr-1 dear/cr-2 dear/cr-block cheap/ dear/"},
		"not as spot": {nil, []string{AnnotationLaunchType, "spot"}, "cheap/"},
	} {
		out := func(o offering.Key) bool { return slices.Contains(c.out, o.Pool) }
		list, err := p.Offerings(annotated(podOf("cpu=1"), c.annotations...), out)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text := reservedNames(list); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
		if name == "first" {
			for i, want := range []string{
				0: "cheapest of 2 types that fit cpu 1; in reservation cr-1, which is paid for whether it is used or not",
				2: "cheapest of 2 types that fit cpu 1; in reservation cr-block, which is paid for whether it is used or not",
				3: "2nd cheapest of 2 types that fit cpu 1",
				4: "3rd cheapest of 2 types that fit cpu 1",
			} {
				if want != "" && list[i].Reason != want {
					t.Errorf("%d: %q, want %q", i, list[i].Reason, want)
				}
			}
			if list[0].PricePerHour != 3 {
				t.Errorf("its price is told as %v", list[0].PricePerHour)
			}
		}
	}
}
