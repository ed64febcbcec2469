package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/offering"
)

// sold are the types of a region of an embedded catalogue.
func sold(t testing.TB, cloud, region string) []catalog.InstanceType {
	t.Helper()
	b, err := pricelists.Open(cloud)
	if err != nil {
		t.Fatal(err)
	}
	types, _, err := b.In(region)
	if err != nil {
		t.Fatal(err)
	}
	return types
}

// shape is a pod as people write them: sizes from a tenth of a CPU to 64, a GiB of memory
// or less to 16 for each, and now and then a GPU, a zone, an architecture, spot.
func shape(rng *rand.Rand, zones []string) *corev1.Pod {
	milli := int64(100 * math.Exp2(rng.Float64()*9.3))
	memory := int64(float64(milli*gib) / 1000 * math.Exp2(rng.Float64()*5-1))
	l := corev1.ResourceList{
		corev1.ResourceCPU:    *apiresource.NewMilliQuantity(milli, apiresource.DecimalSI),
		corev1.ResourceMemory: *apiresource.NewQuantity(memory, apiresource.BinarySI),
	}
	pod := &corev1.Pod{}
	pod.Annotations = map[string]string{}
	if rng.IntN(10) == 0 {
		l[resourceGPU] = *apiresource.NewQuantity(1+rng.Int64N(2), apiresource.DecimalSI)
	}
	if rng.IntN(3) == 0 {
		pod.Annotations[AnnotationLaunchType] = []string{"spot", "spot,on-demand"}[rng.IntN(2)]
	}
	if rng.IntN(3) == 0 {
		selecting(pod, corev1.LabelArchStable, []string{"amd64", "arm64"}[rng.IntN(2)])
	}
	if rng.IntN(4) == 0 {
		selecting(pod, corev1.LabelTopologyZone, zones[rng.IntN(len(zones))])
	}
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: l}}}
	return pod
}

// costOf is that of the first candidate; infinite where there is none.
func costOf(p *Placer, pod *corev1.Pod) float64 {
	if got, err := rank(p, pod, nil); err == nil {
		return got[0].cost
	}
	return math.Inf(1)
}

// TestTheChoiceIsTheCheapestOfEachCloudsWholeCatalogue gives each of 1,000 shapes what
// looking at everything that the cloud sells finds.
func TestTheChoiceIsTheCheapestOfEachCloudsWholeCatalogue(t *testing.T) {
	config := Config{DefaultArch: "amd64", ReservedMemoryBytes: 64 << 20, DefaultDiskBytes: 8 * gib}
	for i, c := range []struct {
		cloud, region string
		zones         []string
		shapes        int
	}{
		{"aws", "us-east-1", []string{"us-east-1a", "us-east-1e"}, 600},
		{"gce", "us-central1", []string{""}, 200},
		{"azure", "eastus", []string{""}, 200},
	} {
		types := sold(t, c.cloud, c.region)
		rng := rand.New(rand.NewPCG(uint64(i), 13))
		p := placer(t, types, config)
		shuffled := slices.Clone(types)
		rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		again := placer(t, shuffled, config)
		// Some of what is sold, as if the rest were not.
		fewer := placer(t, slices.DeleteFunc(shuffled, func(catalog.InstanceType) bool { return rng.IntN(3) == 0 }), config)
		placed, dearer := 0, 0
		for n := range c.shapes {
			pod := shape(rng, c.zones)
			where := fmt.Sprintf("%s, shape %d", c.cloud, n)
			want, _ := oracleCandidates(types, config, pod, func(offering.Key) bool { return false })
			got, err := rank(p, pod, nil)
			if len(got) != len(want) || (err != nil) != (len(want) == 0) {
				t.Fatalf("%s: %d candidates, %v, want %d", where, len(got), err, len(want))
			}
			placed += min(1, len(got))
			for j, w := range want {
				if got[j].InstanceType != w.t.Name || *got[j].sold != w.o || got[j].cost != w.cost {
					t.Fatalf("%s: candidate %d is %s %+v, want %s %+v", where, j, got[j].InstanceType, *got[j].sold, w.t.Name, w.o)
				}
			}
			before, _ := p.Offerings(pod, nil)
			same, _ := again.Offerings(pod, nil)
			if names(same) != names(before) {
				t.Errorf("%s: with the catalogue in another order %s, before %s", where, names(same), names(before))
			}
			all, some := costOf(p, pod), costOf(fewer, pod)
			if all > some {
				t.Errorf("%s: costs %v, and %v of a smaller catalogue", where, all, some)
			}
			if all < some {
				dearer++
			}
		}
		if placed < c.shapes/2 || dearer < c.shapes/10 {
			t.Errorf("%s: of %d shapes %d are placed, and %d cost more of a smaller catalogue: such a test says little", c.cloud, c.shapes,
				placed, dearer)
		}
	}
}

// BenchmarkOfferingsOfAWS is on all that AWS sells in its largest region, of which a
// fifth is out of capacity in one zone.
func BenchmarkOfferingsOfAWS(b *testing.B) {
	types := sold(b, "aws", "us-east-1")
	p := placer(b, types, Config{DefaultArch: "amd64", ReservedMemoryBytes: 64 << 20, DefaultDiskBytes: 8 * gib})
	shortages := capacity.New(clock.RealClock{})
	for i, t := range types {
		if i%5 == 0 {
			shortages.Mark(capacity.Shortage{InstanceType: t.Name, Zone: "us-east-1a", Spot: new(false)})
		}
	}
	small := podOf("cpu=500m", "memory=512Mi")
	for name, pod := range map[string]*corev1.Pod{
		"small":       small,
		"large":       podOf("cpu=32", "memory=120Gi"),
		"gpu":         podOf("cpu=4", "memory=16Gi", "nvidia.com/gpu=1"),
		"arch":        selecting(podOf("cpu=1", "memory=2Gi"), corev1.LabelArchStable, "arm64"),
		"zone":        selecting(podOf("cpu=1", "memory=2Gi"), corev1.LabelTopologyZone, "us-east-1b"),
		"spot":        annotated(podOf("cpu=1", "memory=2Gi"), AnnotationLaunchType, "spot"),
		"pattern":     annotated(podOf("cpu=1", "memory=2Gi"), AnnotationInstanceType, "c*.*"),
		"unplaceable": podOf("cpu=9000"),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			start := cpuTime(b)
			for b.Loop() {
				if _, err := p.Offerings(pod, shortages.Unavailable); (err != nil) != (name == "unplaceable") {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/(cpuTime(b)-start).Seconds(), "choices/cpu-s")
		})
	}
}
