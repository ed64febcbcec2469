package placement

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

// dearAndCheap is a catalogue of a dear type and a cheap one, each also as spot.
func dearAndCheap() []catalog.InstanceType {
	one := func(name string, price float64) catalog.InstanceType {
		return catalog.InstanceType{Name: name, MilliCPU: 4000, MemoryBytes: 8 << 30, Arch: "amd64", Offerings: []catalog.PurchaseOption{
			{Zone: "a", PricePerHour: price}, {Zone: "b", PricePerHour: price}, {Zone: "a", Spot: true, PricePerHour: price / 4},
		}}
	}
	return []catalog.InstanceType{one("cheap", 1), one("dear", 9)}
}

const dearFirst = `[{"launchType":"on-demand","matchExpressions":[{"key":"node.kubernetes.io/instance-type","operator":"In","values":["dear"]}]},` +
	`{"launchType":"spot"},{"matchExpressions":[{"key":"node.kubernetes.io/instance-type","operator":"Exists"}]}]`

func TestAnOrderedListIsTriedInItsOrderWhateverThePrice(t *testing.T) {
	p := placer(t, dearAndCheap(), Config{})
	pod := func() *corev1.Pod { return annotated(podOf("cpu=1"), AnnotationRequirements, dearFirst) }
	has := func(what string, unavailable func(offering.Key) bool, want ...string) {
		t.Helper()
		chosen, err := p.Choose(pod(), unavailable)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range chosen.Offerings {
			rank, _, _ := strings.Cut(o.Reason, ":")
			got = append(got, rank+" "+o.InstanceType+" "+string(o.CapacityType())+" "+o.Zone)
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("%s:\n got %q\nwant %q", what, got, want)
		}
	}
	has("all can be had", nil,
		"choice 1 of 3 dear on-demand a", "choice 1 of 3 dear on-demand b",
		"choice 2 of 3 cheap spot a", "choice 2 of 3 dear spot a",
		"choice 3 of 3 cheap on-demand a", "choice 3 of 3 cheap on-demand b")
	dear := func(k offering.Key) bool { return k.InstanceType == "dear" && !k.Spot }
	has("the first is out of capacity", dear,
		"choice 2 of 3 cheap spot a", "choice 2 of 3 dear spot a",
		"choice 3 of 3 cheap on-demand a", "choice 3 of 3 cheap on-demand b")

	_, err := p.Offerings(pod(), func(offering.Key) bool { return true })
	if _, is := errors.AsType[*NoCapacityError](err); !is || !strings.Contains(err.Error(), "(choice 3 of 3)") {
		t.Errorf("nothing can be had: %v", err)
	}
	_, err = p.Offerings(annotated(podOf("cpu=100"), AnnotationRequirements, dearFirst), nil)
	if _, is := errors.AsType[*UnplaceableError](err); !is || !strings.Contains(err.Error(), "(choice 1 of 3)") {
		t.Errorf("nothing fits: %v", err)
	}
}

func TestAnOrderedListThatIsNotValid(t *testing.T) {
	for value, want := range map[string]string{
		`[{"launchType":"cheap"}]`:                                                   `launchType "cheap" of entry 1: want on-demand, spot`,
		`[{"launchType":"spot","matchFields":[]}]`:                                   "unknown field",
		`[` + strings.Repeat(`{"launchType":"spot"},`, 8) + `{"launchType":"spot"}]`: "9 entries: want 1 to 8",
		`[{"launchType":"spot"}] x`:                                                  "more after the list",
	} {
		if _, err := ParseAnnotations(map[string]string{AnnotationRequirements: value}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", value, err, want)
		}
	}
}

func TestASelectionHoldsInEachEntryOfAnOrderedList(t *testing.T) {
	both, err := AndOrdered(dearFirst, []corev1.NodeSelectorRequirement{expr("node.kubernetes.io/instance-type", corev1.NodeSelectorOpIn,
		"cheap")})
	if err != nil {
		t.Fatal(err)
	}
	list, err := placer(t, dearAndCheap(), Config{}).Offerings(annotated(podOf("cpu=1"), AnnotationRequirements, both), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		if o.InstanceType != "cheap" {
			t.Errorf("%s is offered", o)
		}
	}
	if len(list) != 3 || !list[0].Spot {
		t.Errorf("offered are %v", list)
	}
}

func TestTheRankOfAnOfferingIsThatOfTheFirstChoiceThatAsksForIt(t *testing.T) {
	p := placer(t, dearAndCheap(), Config{LaunchTypes: []LaunchType{Spot, OnDemand}})
	key := func(name, zone string, spot bool) offering.Key {
		return offering.Key{InstanceType: name, Zone: zone, Spot: spot}
	}
	keys := []offering.Key{
		key("dear", "b", false), key("dear", "a", true), key("cheap", "a", true), key("cheap", "b", false),
		key("gone", "a", false), key("dear", "c", false), key("cheap", "b", true), // which is not offered, and would be of the second
		{InstanceType: "dear", Zone: "a", Pool: catalog.Dedicated}, {InstanceType: "dear", Zone: "a", Pool: "cr-1"},
	}
	for what, tc := range map[string]struct {
		pod  *corev1.Pod
		of   []int
		have []bool // whether each rank has something
	}{
		// The third entry has the node's launch types.
		"an ordered list": {annotated(podOf("cpu=1"), AnnotationRequirements, dearFirst), []int{1, 2, 2, 4, 0, 0, 2, 0, 1}, []bool{false, true, true, true}},
		"launch types":    {annotated(podOf("cpu=1"), AnnotationLaunchType, "on-demand,spot"), []int{1, 2, 2, 1, 0, 0, 2, 0, 1}, []bool{true, true}},
		"the node's":      {podOf("cpu=1"), []int{2, 1, 1, 2, 0, 0, 1, 0, 2}, []bool{true, true}},
		"one":             {annotated(podOf("cpu=1"), AnnotationLaunchType, "spot"), []int{0, 1, 1, 0, 0, 0, 1, 0, 0}, []bool{true}},
		"one that is too large, and a price": {
			annotated(annotated(podOf("cpu=100"), AnnotationLaunchType, "spot,on-demand"), AnnotationMaxPrice, "0.001"),
			[]int{2, 1, 1, 2, 0, 0, 1, 0, 2}, []bool{false, false},
		},
	} {
		r, err := p.Rank(tc.pod, keys, func(k offering.Key) bool { return k.InstanceType == "dear" && !k.Spot })
		if err != nil {
			t.Fatal(err)
		}
		var have []bool
		for _, why := range r.WhyNot {
			have = append(have, why == nil)
		}
		if !slices.Equal(r.Of, tc.of) || !slices.Equal(have, tc.have) {
			t.Errorf("%s: ranks %v, want %v; something can be launched of each: %v, want %v", what, r.Of, tc.of, have, tc.have)
		}
	}
	if _, err := p.Rank(annotated(podOf("cpu=1"), AnnotationLaunchType, "cheap"), keys, nil); err == nil {
		t.Error("an annotation that is not valid has ranks")
	}
}
