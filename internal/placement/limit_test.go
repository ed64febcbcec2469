package placement

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// limited is a catalogue of two architectures in two zones.
var limited = []catalog.InstanceType{
	{Name: "g5.big", Arch: "amd64", MilliCPU: 4000, MemoryBytes: 8 << 30, Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 4}}},
	{Name: "m5.large", Arch: "amd64", MilliCPU: 2000, MemoryBytes: 4 << 30, Offerings: []catalog.PurchaseOption{
		{Zone: "a", PricePerHour: 2}, {Zone: "b", PricePerHour: 2}, {Zone: "b", Spot: true, PricePerHour: 1},
		{Zone: "a", Dedicated: true, PricePerHour: 3},
	}},
	{Name: "m6g.large", Arch: "arm64", MilliCPU: 2000, MemoryBytes: 4 << 30, Offerings: []catalog.PurchaseOption{
		{Zone: "a", PricePerHour: 1.5}, {Zone: "b", Spot: true, PricePerHour: 0.5},
	}},
}

func TestALimitLeavesWhatItOffersAndNothingElse(t *testing.T) {
	all := fmt.Sprint(limited)
	for _, c := range []struct {
		limit Limit
		want  string
		words string
	}{
		{Limit{}, "g5.big:a m5.large:a,b,b-spot,a-dedicated m6g.large:a,b-spot", ""},
		{Limit{Zones: []string{"b"}}, "m5.large:b,b-spot m6g.large:b-spot", "zone b"},
		{Limit{Zones: []string{"a", "b"}, Archs: []string{"arm64"}}, "m6g.large:a,b-spot", "zone a or b, arm64"},
		{Limit{LaunchTypes: []LaunchType{Spot}}, "m5.large:b-spot m6g.large:b-spot", "spot"},
		{Limit{LaunchTypes: []LaunchType{Dedicated, Spot}, Archs: []string{"amd64"}}, "m5.large:b-spot,a-dedicated", "amd64, dedicated or spot"},
		{Limit{InstanceTypes: []string{"g*", "m6g.large"}}, "g5.big:a m6g.large:a,b-spot", "type g* or m6g.large"},
		{Limit{InstanceTypes: []string{"m5"}}, "", "type m5"},
		{Limit{Zones: []string{"c"}}, "", "zone c"},
	} {
		var got []string
		for _, it := range c.limit.Of(limited) {
			var offerings []string
			for _, o := range it.Offerings {
				how := ""
				if as := offering.CapacityTypeOf(o.Spot, o.Dedicated); as != OnDemand {
					how = "-" + string(as)
				}
				offerings = append(offerings, o.Zone+how)
			}
			got = append(got, it.Name+":"+strings.Join(offerings, ","))
		}
		if strings.Join(got, " ") != c.want || c.limit.String() != c.words {
			t.Errorf("%+v leaves %q (%q): want %q (%q)", c.limit, got, c.limit, c.want, c.words)
		}
	}
	if now := fmt.Sprint(limited); now != all {
		t.Errorf("the catalogue has changed: %s", now)
	}
}

func TestPodsOfALimitedNodeGetWhatItOffers(t *testing.T) {
	config := Config{DefaultInstanceType: "m5.large", DefaultArch: "amd64"}
	for _, c := range []struct {
		limit       Limit
		annotations map[string]string
		want        string // the first choice, or a part of the error
	}{
		{Limit{}, nil, "m5.large a on-demand"},
		{Limit{LaunchTypes: []LaunchType{Spot, OnDemand}}, nil, "m5.large b spot"},
		{Limit{LaunchTypes: []LaunchType{OnDemand, Spot}}, nil, "m5.large a on-demand"},
		{Limit{LaunchTypes: []LaunchType{Spot}}, map[string]string{AnnotationLaunchType: "on-demand"},
			"needs no resources: 1 type considered: 1 is not offered on demand"},
		{Limit{LaunchTypes: []LaunchType{OnDemand}}, map[string]string{AnnotationLaunchType: "spot,on-demand"}, "m5.large a on-demand"},
		{Limit{Archs: []string{"arm64"}}, nil, "m6g.large a on-demand"},
		{Limit{Archs: []string{"arm64", "amd64"}, InstanceTypes: []string{"m6*", "g5*"}}, nil, "m6g.large a on-demand"},
		{Limit{Zones: []string{"b"}}, map[string]string{AnnotationInstanceType: "g5.big"},
			`"g5.big" is not valid: want a type of node kip-0-2, which offers zone b`},
		{Limit{Zones: []string{"b"}}, map[string]string{AnnotationInstanceType: "g5*"},
			"want a pattern that the name of a type of node kip-0-2, which offers zone b matches"},
	} {
		p, err := New(c.limit.Of(limited), config.Within(c.limit, "kip-0-2", limited))
		if err != nil {
			t.Errorf("%+v: %v", c.limit, err)
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: c.annotations}}
		got := ""
		if list, err := p.Offerings(pod, nil); err != nil {
			got = err.Error()
			var unplaceable *UnplaceableError
			if strings.HasPrefix(c.want, "needs") && !errors.As(err, &unplaceable) {
				t.Errorf("%+v: %v is no *UnplaceableError", c.limit, err)
			}
		} else {
			got = fmt.Sprintf("%s %s %s", list[0].InstanceType, list[0].Zone, list[0].CapacityType())
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%+v with %v: %s, want %s", c.limit, c.annotations, got, c.want)
		}
	}
}
