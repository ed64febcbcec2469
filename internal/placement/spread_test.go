package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

// spotTypes have one offering of spot in each zone, at a price.
func spotTypes(zones []string, prices ...float64) (all []catalog.InstanceType) {
	for n, price := range prices {
		t := catalog.InstanceType{Name: fmt.Sprint("t", n), Arch: "amd64", MilliCPU: 2000, MemoryBytes: 8 << 30}
		for _, zone := range zones {
			t.Offerings = append(t.Offerings, catalog.PurchaseOption{Zone: zone, PricePerHour: 4 * price},
				catalog.PurchaseOption{Zone: zone, Spot: true, PricePerHour: price})
		}
		all = append(all, t)
	}
	return all
}

// spotPod is the nth of many that are alike.
func spotPod(n int, annotations ...string) *corev1.Pod {
	pod := annotated(podOf("cpu=1"), append([]string{AnnotationLaunchType, "spot"}, annotations...)...)
	pod.UID = apitypes.UID(fmt.Sprintf("5d9f1c0e-0000-4000-8000-%012d", n))
	return pod
}

func poolOf(c offering.Offering) string { return c.InstanceType + "/" + c.Zone }

// firsts are how many of the pods are launched in each pool.
func firsts(t *testing.T, p *Placer, pods int, unavailable func(offering.Key) bool) map[string]int {
	t.Helper()
	count := map[string]int{}
	for n := range pods {
		list, err := p.Offerings(spotPod(n), unavailable)
		if err != nil {
			t.Fatal(err)
		}
		count[poolOf(list[0])]++
	}
	return count
}

func TestSpotIsSpreadOverPoolsOfNearlyTheSamePrice(t *testing.T) {
	zones := []string{"a", "b", "c"}
	const pods = 600
	for name, c := range map[string]struct {
		share float64
		types []catalog.InstanceType
		want  int // pools
	}{
		"two types in three zones":   {0.1, spotTypes(zones, 1, 1.09, 1.2), 6},
		"one type in three zones":    {0.1, spotTypes(zones, 1, 1.2), 3},
		"more pools than are wise":   {0.1, spotTypes(zones, 1, 1.01, 1.02, 1.03), maxPools},
		"nothing else is as cheap":   {0.1, spotTypes([]string{"a"}, 1, 1.2), 1},
		"the operator wants no such": {0, spotTypes(zones, 1, 1), 1},
	} {
		count := firsts(t, placer(t, c.types, Config{SpotSpread: c.share}), pods, nil)
		if len(count) != c.want {
			t.Errorf("%s: %v, want %d pools", name, count, c.want)
		}
		for pool, n := range count {
			if n < pods/len(count)/2 {
				t.Errorf("%s: %d of %d pods are in %s: %v", name, n, pods, pool, count)
			}
		}
	}
}

func TestAPodHasOneOrderOfPools(t *testing.T) {
	kinds := spotTypes([]string{"a", "b", "c"}, 1, 1.05, 1.5)
	cheapest, spread := placer(t, kinds, Config{}), placer(t, kinds, Config{SpotSpread: 0.1})
	names := func(p *Placer, pod *corev1.Pod) (all []string) {
		list, err := p.Offerings(pod, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			all = append(all, poolOf(c))
		}
		return all
	}
	byCost := names(cheapest, spotPod(1))
	got := names(spread, spotPod(1))
	if again := names(spread, spotPod(1)); !slices.Equal(again, got) {
		t.Errorf("a pod has %v, and then %v", got, again)
	}
	if !slices.Equal(got[6:], byCost[6:]) || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(byCost))) {
		t.Errorf("%v, want those of %v, and what is dearer in its order", got, byCost)
	}
	for what, pod := range map[string]*corev1.Pod{
		"a pod that there is not yet": annotated(podOf("cpu=1"), AnnotationLaunchType, "spot"),
		"a pod on demand":             spotPod(1, AnnotationLaunchType, "on-demand"),
	} {
		if got := names(spread, pod); !slices.Equal(got, byCost) {
			t.Errorf("%s has %v, want %v", what, got, byCost)
		}
	}
	list, err := spread.Offerings(spotPod(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	const why = "; spread over 6 spot pools that cost at most 10 % more than the cheapest"
	for n, c := range list {
		if is := strings.HasSuffix(c.Reason, why); is != (n < 6) {
			t.Errorf("%d: %s", n, c.Reason)
		}
	}
}

func TestAPoolThatIsOutMovesOnlyThePodsInIt(t *testing.T) {
	p := placer(t, spotTypes([]string{"a", "b", "c"}, 1, 1.05), Config{SpotSpread: 0.1})
	out := func(o offering.Key) bool { return o.InstanceType == "t0" && o.Zone == "b" }
	for n := range 100 {
		before, err := p.Offerings(spotPod(n), nil)
		if err != nil {
			t.Fatal(err)
		}
		after, err := p.Offerings(spotPod(n), out)
		if err != nil {
			t.Fatal(err)
		}
		was, is := poolOf(before[0]), poolOf(after[0])
		if want := map[bool]string{false: was, true: poolOf(before[1])}[was == "t0/b"]; is != want {
			t.Errorf("pod %d moves from %s to %s, want %s", n, was, is, want)
		}
	}
}

// What was taken back in the last day comes last, while something else is nearly as cheap.
func TestInterruptedPoolsComeLast(t *testing.T) {
	kinds := spotTypes([]string{"a", "b", "c"}, 1)
	for i := range kinds[0].Offerings {
		if o := &kinds[0].Offerings[i]; o.Spot && o.Zone != "c" {
			o.Risk = map[string]float64{"a": 0.1, "b": 0.05}[o.Zone]
		}
	}
	p := placer(t, kinds, Config{SpotSpread: 0.2})
	if got := firsts(t, p, 50, nil); got["t0/c"] != 50 {
		t.Errorf("pods are in %v, want all in zone c", got)
	}
	out := func(o offering.Key) bool { return o.Zone == "c" }
	if got := firsts(t, p, 50, out); got["t0/b"] != 50 {
		t.Errorf("without zone c they are in %v, want all in zone b", got)
	}
	for i := range kinds[0].Offerings {
		kinds[0].Offerings[i].Risk = 0.1
	}
	if got := firsts(t, placer(t, kinds, Config{SpotSpread: 0.2}), 50, nil); len(got) != 3 {
		t.Errorf("once all were taken back they are in %v, want three", got)
	}
}

func TestAPreferredTypeSharesWithNoOther(t *testing.T) {
	kinds := spotTypes([]string{"a", "b"}, 1.04, 1, 1.02)
	kinds[0].Prefer = 0.05
	if got := firsts(t, placer(t, kinds, Config{SpotSpread: 0.1}), 50, nil); got["t0/a"]+got["t0/b"] != 50 || len(got) != 2 {
		t.Errorf("pods are in %v, want them in the preferred type, in both zones", got)
	}
}
