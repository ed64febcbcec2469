package catalog

import (
	"math"
	"reflect"
	"testing"
)

func TestOwnPricesReplaceThoseOfTheCatalogue(t *testing.T) {
	types := func() []InstanceType {
		at := func(price float64) []PurchaseOption {
			return []PurchaseOption{{Zone: "z", PricePerHour: price}, {Zone: "z", Spot: true, Unpriced: true},
				{Zone: "z", Dedicated: true, PricePerHour: 2 * price}}
		}
		return []InstanceType{{Name: "c5.large", Offerings: at(1)}, {Name: "c5.xlarge", Offerings: at(2)},
			{Name: "m5.large", Offerings: at(3)}}
	}
	type prices map[string][3]float64 // on demand, spot (0 where unknown), dedicated
	for about, c := range map[string]struct {
		terms []Term
		want  prices
	}{
		"none": {nil, prices{"c5.large": {1, 0, 2}, "c5.xlarge": {2, 0, 4}, "m5.large": {3, 0, 6}}},
		"a discount by family": {[]Term{{InstanceTypes: []string{"c5.*"}, Discount: 0.5}},
			prices{"c5.large": {0.5, 0, 1}, "c5.xlarge": {1, 0, 2}, "m5.large": {3, 0, 6}}},
		"a discount by region": {[]Term{{Regions: []string{"r", "s"}, Discount: 0.5}},
			prices{"c5.large": {0.5, 0, 1}, "c5.xlarge": {1, 0, 2}, "m5.large": {1.5, 0, 3}}},
		"of another region": {[]Term{{Regions: []string{"s"}, Discount: 0.5}},
			prices{"c5.large": {1, 0, 2}, "c5.xlarge": {2, 0, 4}, "m5.large": {3, 0, 6}}},
		"a price of spot": {[]Term{{Spot: true, PricePerHour: 0.1}},
			prices{"c5.large": {1, 0.1, 2}, "c5.xlarge": {2, 0.1, 4}, "m5.large": {3, 0.1, 6}}},
		"a discount on what is unknown": {[]Term{{Spot: true, Discount: 0.5}},
			prices{"c5.large": {1, 0, 2}, "c5.xlarge": {2, 0, 4}, "m5.large": {3, 0, 6}}},
		"the first counts": {[]Term{{InstanceTypes: []string{"c5.large"}, PricePerHour: 7}, {Discount: 0.5}},
			prices{"c5.large": {7, 0, 7}, "c5.xlarge": {1, 0, 2}, "m5.large": {1.5, 0, 3}}},
		"a price of dedicated instances": {[]Term{{Dedicated: true, PricePerHour: 9}, {PricePerHour: 8}},
			prices{"c5.large": {8, 0, 9}, "c5.xlarge": {8, 0, 9}, "m5.large": {8, 0, 9}}},
		"types left out": {[]Term{{InstanceTypes: []string{"*.large"}, Exclude: true}}, prices{"c5.xlarge": {2, 0, 4}}},
	} {
		before := types()
		got := prices{}
		for _, typ := range Apply(c.terms, before, "r") {
			got[typ.Name] = [3]float64{typ.Offerings[0].PricePerHour, typ.Offerings[1].PricePerHour, typ.Offerings[2].PricePerHour}
			if o := typ.Offerings[1]; o.Unpriced != (o.PricePerHour == 0) {
				t.Errorf("%s: %s as spot is %+v", about, typ.Name, o)
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", about, got, c.want)
		}
		if !reflect.DeepEqual(before, types()) {
			t.Errorf("%s: the catalogue is changed", about)
		}
	}
	got := Apply([]Term{{InstanceTypes: []string{"c5.*"}, Prefer: 0.1}, {Prefer: 0.05}}, types(), "r")
	if got[0].Prefer != 0.1 || got[2].Prefer != 0.05 || math.Abs(got[0].Offerings[0].PricePerHour-1) > 0 {
		t.Errorf("preferred: %+v", got)
	}
}
