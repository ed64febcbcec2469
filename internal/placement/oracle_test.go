package placement

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

// randomCatalogue has types whose sizes and prices collide often, so that ties
// and just-fitting sizes are tried too.
func randomCatalogue(rng *rand.Rand, n int) []catalog.InstanceType {
	types := make([]catalog.InstanceType, n)
	for i := range types {
		t := catalog.InstanceType{
			Name:        fmt.Sprintf("%c%d.x%d", 'a'+rng.IntN(4), rng.IntN(3), i),
			MilliCPU:    1000 << rng.IntN(6),
			MemoryBytes: gib << rng.IntN(8),
			Arch:        []string{"amd64", "amd64", "arm64"}[rng.IntN(3)],
		}
		if rng.IntN(5) == 0 {
			t.BaselineMilliCPU = t.MilliCPU / 10
			t.CreditPerCPUHour = []float64{0, 0.05, 0.5}[rng.IntN(3)]
		}
		if rng.IntN(4) == 0 {
			t.UsableBytes = t.MemoryBytes / 16 * 15
		}
		if rng.IntN(4) == 0 {
			t.Learnt = catalog.Resources{MilliCPU: t.MilliCPU / (1 + rng.Int64N(2)), MemoryBytes: t.MemoryBytes / 16 * (12 + rng.Int64N(5))}
		}
		if rng.IntN(4) == 0 {
			t.DiskBytes = gib << rng.IntN(10)
		}
		if rng.IntN(8) == 0 {
			t.GPUs = []catalog.GPU{{Model: []string{"t4", "Radeon Pro V520"}[rng.IntN(2)], Count: 1 + rng.Int64N(4)}}
		}
		for _, zone := range []string{"a", "b", "c"} {
			price := float64(1+rng.IntN(40)) / 20
			if rng.IntN(5) > 0 {
				t.Offerings = append(t.Offerings, catalog.PurchaseOption{Zone: zone, PricePerHour: price})
			}
			if rng.IntN(5) == 0 {
				t.Offerings = append(t.Offerings, catalog.PurchaseOption{Zone: zone, Subnet: "s" + zone, PricePerHour: price})
			}
			if rng.IntN(2) > 0 {
				o := catalog.PurchaseOption{Zone: zone, Spot: true, PricePerHour: price / 4}
				if rng.IntN(3) == 0 {
					o.PricePerHour, o.Unpriced = 0, true
				}
				if rng.IntN(4) == 0 {
					o.Risk = float64(rng.IntN(11)) / 10
				}
				t.Offerings = append(t.Offerings, o)
			}
		}
		types[i] = t
	}
	return types
}

func randomResources(rng *rand.Rand) corev1.ResourceRequirements {
	list := func() corev1.ResourceList {
		l := corev1.ResourceList{}
		set := func(name corev1.ResourceName, q *apiresource.Quantity) {
			if rng.IntN(2) == 0 {
				l[name] = *q
			}
		}
		set(corev1.ResourceCPU, apiresource.NewMilliQuantity(rng.Int64N(9)*250, apiresource.DecimalSI))
		set(corev1.ResourceMemory, apiresource.NewQuantity(rng.Int64N(9)*gib/4, apiresource.BinarySI))
		if rng.IntN(4) == 0 {
			set(corev1.ResourceEphemeralStorage, apiresource.NewQuantity(rng.Int64N(9)*gib, apiresource.BinarySI))
		}
		if rng.IntN(12) == 0 {
			set(resourceGPU, apiresource.NewQuantity(rng.Int64N(3), apiresource.DecimalSI))
		}
		if rng.IntN(12) == 0 {
			set("hugepages-2Mi", apiresource.NewQuantity(rng.Int64N(9)*gib/4, apiresource.BinarySI))
		}
		if rng.IntN(20) == 0 {
			set("hugepages-32Mi", apiresource.NewQuantity(rng.Int64N(9)*gib/4, apiresource.BinarySI))
		}
		return l
	}
	return corev1.ResourceRequirements{Requests: list(), Limits: list()}
}

func randomPod(rng *rand.Rand, types []catalog.InstanceType) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{}
	pod.Annotations = map[string]string{}
	for range 1 + rng.IntN(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: randomResources(rng)})
	}
	for range rng.IntN(4) {
		c := corev1.Container{Resources: randomResources(rng)}
		if rng.IntN(2) == 0 {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	if rng.IntN(4) == 0 {
		pod.Spec.Overhead = resources("cpu=100m", "memory=128Mi")
	}
	switch rng.IntN(8) {
	case 0, 1:
		pod.Annotations[AnnotationLaunchType] = "spot"
	case 2, 3:
		pod.Annotations[AnnotationLaunchType] = "spot,on-demand"
	case 4:
		pod.Annotations[AnnotationLaunchType] = "on-demand,dedicated,spot"
	}
	switch rng.IntN(10) {
	case 0, 1:
		pod.Annotations[AnnotationInstanceType] = []string{"a*", "*1.*", "b0.*", "*"}[rng.IntN(4)]
	case 2:
		pod.Annotations[AnnotationInstanceType] = types[rng.IntN(len(types))].Name
	}
	if rng.IntN(8) == 0 {
		pod.Annotations[AnnotationVolumeSize] = []string{"1Gi", "10Gi", "100Gi"}[rng.IntN(3)]
	}
	if rng.IntN(8) == 0 {
		pod.Annotations[AnnotationSwap] = []string{"0", "512Mi", "4Gi", "100Gi"}[rng.IntN(4)]
	}
	if rng.IntN(6) == 0 {
		pod.Annotations[AnnotationMaxPrice] = []string{"0.07", "0.3", "0.9"}[rng.IntN(3)]
	}
	if rng.IntN(4) == 0 {
		selecting(pod, corev1.LabelTopologyZone, []string{"a", "b", "nowhere"}[rng.IntN(3)])
	}
	if rng.IntN(4) == 0 {
		selecting(pod, corev1.LabelArchStable, []string{"amd64", "arm64"}[rng.IntN(2)])
	}
	return pod
}

// oracleNeed adds up by hand, container by container, what needOf gets from
// Kubernetes' helpers.
func oracleNeed(pod *corev1.Pod, name corev1.ResourceName) int64 {
	amount := func(c corev1.Container) int64 {
		of := func(l corev1.ResourceList) int64 {
			q := l[name]
			if name == corev1.ResourceCPU {
				return q.MilliValue()
			}
			return q.Value()
		}
		return max(of(c.Resources.Requests), of(c.Resources.Limits))
	}
	var running, sidecars, starting int64
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil {
			sidecars += amount(c)
			starting = max(starting, sidecars)
		} else {
			starting = max(starting, sidecars+amount(c))
		}
	}
	running = sidecars
	for _, c := range pod.Spec.Containers {
		running += amount(c)
	}
	return max(running, starting) + amount(corev1.Container{Resources: corev1.ResourceRequirements{Requests: pod.Spec.Overhead}})
}

// named says whether a type is one of those that the pod's annotation names.
func named(t *catalog.InstanceType, pod *corev1.Pod) bool {
	switch name := pod.Annotations[AnnotationInstanceType]; name { // randomPod's patterns
	case "", "*":
		return true
	case "a*":
		return t.Name[0] == 'a'
	case "*1.*":
		return t.Name[1] == '1'
	case "b0.*":
		return t.Name[:3] == "b0."
	default:
		return t.Name == name
	}
}

type oracleCandidate struct {
	t    *catalog.InstanceType
	o    catalog.PurchaseOption
	cost float64
}

// oracle looks at every offering of every type and sorts all that fit and are spot, or
// are not.
func oracle(types []catalog.InstanceType, config Config, pod *corev1.Pod, spot bool) []oracleCandidate {
	cpu, memory := oracleNeed(pod, corev1.ResourceCPU), oracleNeed(pod, corev1.ResourceMemory)
	disk, gpus := oracleNeed(pod, corev1.ResourceEphemeralStorage), oracleNeed(pod, resourceGPU)
	pages32 := oracleNeed(pod, "hugepages-32Mi")
	pages := oracleNeed(pod, "hugepages-2Mi") + pages32
	arch := pod.Spec.NodeSelector[corev1.LabelArchStable]
	only := ""
	switch name := pod.Annotations[AnnotationInstanceType]; {
	case name != "" && !strings.Contains(name, "*"):
		only = name
	case name == "" && cpu == 0 && memory == 0 && disk == 0 && gpus == 0 && pages == 0:
		only = config.DefaultInstanceType
	}
	volume := int64(0)
	if v, ok := pod.Annotations[AnnotationVolumeSize]; ok {
		q := apiresource.MustParse(v)
		volume = q.Value()
	}
	swap := int64(0)
	if v, ok := pod.Annotations[AnnotationSwap]; ok {
		q := apiresource.MustParse(v)
		swap = q.Value()
	}
	if arch == "" && only == "" {
		arch = config.DefaultArch
	}
	var all []oracleCandidate
	for i := range types {
		t := &types[i]
		var typeGPUs int64
		for _, g := range t.GPUs {
			if !strings.Contains(g.Model, "Radeon") && g.Model != "MI300X" { // AMD's
				typeGPUs += g.Count
			}
		}
		if only != "" && t.Name != only || arch != "" && t.Arch != arch {
			continue
		}
		if !named(t, pod) {
			continue
		}
		typeDisk := t.DiskBytes
		if typeDisk == 0 {
			typeDisk = max(max(volume, config.DefaultDiskBytes)+(swap+gib-1)/gib*gib, (diskFor(disk+swap)+gib-1)/gib*gib)
		}
		if volume+swap > typeDisk || diskFor(swap) > typeDisk {
			continue
		}
		has, sees := t.MilliCPU, t.MemoryBytes
		if t.UsableBytes > 0 {
			sees = t.UsableBytes
		}
		if !t.Learnt.None() {
			has, sees = t.Learnt.MilliCPU, t.Learnt.MemoryBytes
		}
		if t.BaselineMilliCPU > 0 && t.CreditPerCPUHour == 0 {
			has = min(has, t.BaselineMilliCPU)
		}
		if only == "" && (cpu > has || memory+pages+config.ReservedMemoryBytes > sees || diskFor(disk+swap) > typeDisk) || gpus > typeGPUs {
			continue
		}
		if pages > 0 && (config.SharedKernel || pages+config.ReservedMemoryBytes > sees) || pages32 > 0 && t.Arch != "arm64" {
			continue
		}
		for _, o := range t.Offerings {
			zone := pod.Spec.NodeSelector[corev1.LabelTopologyZone]
			if o.Spot != spot || zone != "" && zone != o.Zone {
				continue
			}
			cost := o.PricePerHour * (1 + o.Risk)
			extra := 0.0
			if config.Rates != nil && t.DiskBytes == 0 {
				extra += float64(typeDisk) / float64(gib) * config.Rates.DiskPerGiBMonth / 730
			}
			if config.Rates != nil {
				extra += config.Rates.AddressPerHour
			}
			if t.BaselineMilliCPU > 0 && cpu > t.BaselineMilliCPU {
				extra += float64(min(cpu, t.MilliCPU)-t.BaselineMilliCPU) / 1000 * t.CreditPerCPUHour
			}
			cost += extra
			paid := o.PricePerHour + extra
			if o.Unpriced {
				cost, paid = math.Inf(1), math.Inf(1)
			}
			if most, err := strconv.ParseFloat(pod.Annotations[AnnotationMaxPrice], 64); err == nil {
				if paid > most+1e-6 {
					continue
				}
			}
			all = append(all, oracleCandidate{t, o, cost})
		}
	}
	slices.SortFunc(all, func(a, b oracleCandidate) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.t.MilliCPU, b.t.MilliCPU), cmp.Compare(a.t.MemoryBytes, b.t.MemoryBytes),
			cmp.Compare(a.t.Name, b.t.Name), cmp.Compare(a.o.Zone, b.o.Zone), cmp.Compare(a.o.Subnet, b.o.Subnet))
	})
	return all
}

// oracleCandidates are those that are available, at most MaxOfferings of them, and
// whether any would fit if it were.
func oracleCandidates(types []catalog.InstanceType, config Config, pod *corev1.Pod,
	unavailable func(offering.Key) bool) (all []oracleCandidate, fits bool) {
	of := func(spot bool) []oracleCandidate {
		fitting := oracle(types, config, pod, spot)
		fits = fits || len(fitting) > 0
		return slices.DeleteFunc(fitting, func(c oracleCandidate) bool {
			return unavailable(offering.Key{InstanceType: c.t.Name, Zone: c.o.Zone, Subnet: c.o.Subnet, Spot: spot})
		})
	}
	var first, second []oracleCandidate
	switch pod.Annotations[AnnotationLaunchType] {
	case "spot":
		first = of(true)
	case "spot,on-demand":
		first, second = of(true), of(false)
	case "on-demand,dedicated,spot":
		first, second = of(false), of(true)
	default:
		first = of(false)
	}
	second = second[:min(len(second), max(fallbackCandidates, MaxOfferings-len(first)))]
	first = first[:min(len(first), MaxOfferings-min(len(second), fallbackCandidates))]
	return append(first, second...), fits
}

func TestOfferingsAreTheCheapestThatFit(t *testing.T) {
	var placed, fellBack, full, unplaceable, noCapacity, misnamed int
	for seed := range uint64(25) {
		rng := rand.New(rand.NewPCG(seed, 1))
		types := randomCatalogue(rng, 1+rng.IntN(60))
		config := Config{ReservedMemoryBytes: rng.Int64N(4) * gib / 2, DefaultDiskBytes: 5 * gib}
		if rng.IntN(2) == 0 {
			config.DefaultArch = "amd64"
		}
		config.SharedKernel = rng.IntN(4) == 0
		if rng.IntN(2) == 0 {
			config.Rates = &catalog.Rates{DiskPerGiBMonth: 1, AddressPerHour: 0.005}
		}
		if rng.IntN(2) == 0 {
			config.DefaultInstanceType = types[rng.IntN(len(types))].Name
		}
		p := placer(t, types, config)
		for i := range 200 {
			pod := randomPod(rng, types)
			if rng.IntN(10) == 0 {
				pod.Spec = corev1.PodSpec{Containers: []corev1.Container{{}}, NodeSelector: pod.Spec.NodeSelector}
			}
			out := rng.IntN(4) // of four zones and capacity types, how many are out
			unavailable := func(o offering.Key) bool {
				n := len(o.InstanceType) + int(o.InstanceType[0]) + int(o.Zone[0]) + len(o.Subnet)
				if o.Spot {
					n += 2
				}
				return n%4 < out || out == 3 && o.InstanceType[0] != 'a'
			}
			want, fits := oracleCandidates(types, config, pod, unavailable)

			got, err := rank(p, pod, unavailable)
			switch chosen, failed := p.Choose(pod, unavailable); {
			case (err == nil) != (failed == nil) || len(chosen.Offerings) != len(got):
				t.Fatalf("seed %d, pod %d: %d offerings and %v, of %d and %v", seed, i, len(chosen.Offerings), failed, len(got), err)
			case err == nil:
				counted := chosen.Types
				for _, r := range chosen.RuledOut {
					counted += r.Types
				}
				if considered := len(slices.DeleteFunc(slices.Clone(types), func(t catalog.InstanceType) bool {
					byDefault := len(got) > 0 && strings.Contains(got[0].Reason, "default instance type")
					return !named(&t, pod) || byDefault && t.Name != config.DefaultInstanceType
				})); counted != considered {
					t.Fatalf("seed %d, pod %d: %d types are left or ruled out of %d: %v", seed, i, counted, considered, chosen.RuledOut)
				}
			}
			where := fmt.Sprintf("seed %d, pod %d", seed, i)
			var u *UnplaceableError
			var n *NoCapacityError
			var invalid *InvalidAnnotationError
			switch {
			case len(want) > 0:
				placed++
				if last := want[len(want)-1]; want[0].o.Spot != last.o.Spot {
					fellBack++
					if len(want) == MaxOfferings {
						full++
					}
				}
				if err != nil || len(got) != len(want) {
					t.Fatalf("%s: %d candidates, %v, want %d", where, len(got), err, len(want))
				}
				for j, w := range want {
					if got[j].InstanceType != w.t.Name || *got[j].sold != w.o || got[j].cost != w.cost || got[j].Reason == "" {
						t.Fatalf("%s: candidate %d is %+v, want %s, %+v at %v", where, j, got[j], w.t.Name, w.o, w.cost)
					}
				}
			case fits:
				noCapacity++
				if !errors.As(err, &n) {
					t.Fatalf("%s: error %v, want a NoCapacityError", where, err)
				}
			case !slices.ContainsFunc(types, func(t catalog.InstanceType) bool { return named(&t, pod) }):
				misnamed++
				if !errors.As(err, &invalid) || invalid.Annotation != AnnotationInstanceType {
					t.Fatalf("%s: error %v, want an InvalidAnnotationError of %s", where, err, AnnotationInstanceType)
				}
			default:
				unplaceable++
				if !errors.As(err, &u) {
					t.Fatalf("%s: error %v, want an UnplaceableError", where, err)
				}
				sum := 0
				for _, r := range u.Rejections {
					sum += r.Types
				}
				if sum != u.Considered {
					t.Fatalf("%s: %d types are rejected of %d considered: %v", where, sum, u.Considered, u)
				}
			}
		}
	}
	// The generator must reach each outcome, or the comparison proves nothing.
	if placed < 1000 || fellBack < 500 || full < 100 || unplaceable < 100 || noCapacity < 100 || misnamed < 50 {
		t.Errorf("only %d placed, of them %d with a fall-back and "+
			"%d of these with all that are allowed; %d unplaceable, %d without capacity, %d name no type",
			placed, fellBack, full, unplaceable, noCapacity, misnamed)
	}
}

// largeCatalogue has the shape of a large cloud's: families of types that double in
// size and price, each in six zones, on demand and as spot.
func largeCatalogue(n int) []catalog.InstanceType {
	rng := rand.New(rand.NewPCG(1, 1))
	var types []catalog.InstanceType
	for family := 0; len(types) < n; family++ {
		perCPU := 1 + rng.Float64()
		perGiB := 0.004 + 0.002*rng.Float64()
		memory := []int64{2, 4, 8}[family%3] * gib
		arch := []string{"amd64", "amd64", "arm64"}[rng.IntN(3)]
		for double := range int64(9) {
			t := catalog.InstanceType{Name: fmt.Sprintf("f%d.%dxlarge", family, double), MilliCPU: 1000 << double, MemoryBytes: memory << double,
				Arch: arch}
			if family%50 == 0 {
				t.BaselineMilliCPU, t.CreditPerCPUHour = t.MilliCPU/5, 0.05
			}
			price := float64(t.MilliCPU)/1000*0.02*perCPU + float64(t.MemoryBytes)/float64(gib)*perGiB
			for _, zone := range []string{"a", "b", "c", "d", "e", "f"} {
				t.Offerings = append(t.Offerings, catalog.PurchaseOption{Zone: zone, PricePerHour: price},
					catalog.PurchaseOption{Zone: zone, Spot: true, PricePerHour: price * (0.2 + 0.3*rng.Float64())})
			}
			types = append(types, t)
		}
	}
	return types[:n]
}

func TestTheReasonCountsAllTypesThatFit(t *testing.T) {
	types := largeCatalogue(800)
	config := Config{DefaultArch: "amd64", ReservedMemoryBytes: 64 << 20, DefaultDiskBytes: 5 * gib}
	p := placer(t, types, config)
	for name, pod := range map[string]*corev1.Pod{
		"any":               podOf("cpu=500m", "memory=256Mi"),
		"large":             podOf("cpu=32", "memory=120Gi"),
		"a zone":            selecting(podOf("cpu=1", "memory=1Gi"), corev1.LabelTopologyZone, "b"),
		"an architecture":   selecting(podOf("cpu=1", "memory=1Gi"), corev1.LabelArchStable, "arm64"),
		"a zone, by spot":   annotated(selecting(podOf("cpu=1", "memory=1Gi"), corev1.LabelTopologyZone, "b"), AnnotationLaunchType, "spot"),
		"a pattern":         annotated(podOf("cpu=1", "memory=1Gi"), AnnotationInstanceType, "f1*.*"),
		"a price at most":   annotated(podOf("cpu=1", "memory=1Gi"), AnnotationMaxPrice, "1"),
		"a pattern, a zone": annotated(selecting(podOf("cpu=1"), corev1.LabelTopologyZone, "b"), AnnotationInstanceType, "f1*.*"),
	} {
		// The oracle knows no patterns.
		plain, named := pod.DeepCopy(), strings.Contains(name, "pattern")
		delete(plain.Annotations, AnnotationInstanceType)
		fitting := map[string]bool{}
		for _, c := range oracle(types, config, plain, pod.Annotations[AnnotationLaunchType] == "spot") {
			if !named || strings.HasPrefix(c.t.Name, "f1") {
				fitting[c.t.Name] = true
			}
		}
		got, err := p.Offerings(pod, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(" of %d types", len(fitting)); len(got) < MaxOfferings || !strings.Contains(got[0].Reason, want) {
			t.Errorf("%s: %d candidates, the reason of the first is %q: want%s", name, len(got), got[0].Reason, want)
		}
	}
}

// BenchmarkOfferings is on the catalogue of a large cloud, of which a fifth of the
// families is out of capacity on demand in one zone, and one zone has no spot at all.
func BenchmarkOfferings(b *testing.B) {
	types := largeCatalogue(800)
	p := placer(b, types, Config{DefaultInstanceType: types[0].Name, DefaultArch: "amd64", ReservedMemoryBytes: 64 << 20,
		DefaultDiskBytes: 5 * gib})
	shortages := capacity.New(clock.RealClock{})
	shortages.Mark(capacity.Shortage{Zone: "c", Spot: new(true)})
	for i, t := range types {
		if i/9%5 == 0 {
			shortages.Mark(capacity.Shortage{InstanceType: t.Name, Zone: "a", Spot: new(false)})
		}
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
	}{
		{"small", podOf("cpu=500m", "memory=256Mi")},
		{"limits", &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container(resources("cpu=500m", "memory=256Mi"),
			resources("cpu=1", "memory=1Gi"))}}}},
		{"large", podOf("cpu=32", "memory=120Gi")},
		{"spot", annotated(podOf("cpu=1", "memory=1Gi"), AnnotationLaunchType, "spot")},
		{"spot,on-demand", annotated(podOf("cpu=1", "memory=1Gi"), AnnotationLaunchType, "spot,on-demand")},
		{"zone", selecting(podOf("cpu=1", "memory=1Gi"), corev1.LabelTopologyZone, "b")},
		{"pattern", annotated(podOf("cpu=1", "memory=1Gi"), AnnotationInstanceType, "f1*.*")},
		{"exact", annotated(podOf("cpu=1", "memory=1Gi"), AnnotationInstanceType, types[11].Name)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			start := cpuTime(b)
			for b.Loop() {
				if _, err := p.Offerings(c.pod, shortages.Unavailable); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/(cpuTime(b)-start).Seconds(), "choices/cpu-s")
		})
	}
}

// cpuTime is what this process has used of any core, garbage collection included:
// unlike the time on the clock, it does not depend on what else the machine does.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
