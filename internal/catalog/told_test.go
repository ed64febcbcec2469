package catalog

import (
	"reflect"
	"testing"
	"time"
)

func TestPricesThatWereToldLaterAreKept(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	of := func(told time.Time, onDemand, spot float64) InstanceType {
		return InstanceType{Name: "a", PricesTold: told, Offerings: []PurchaseOption{
			{Zone: "z1", PricePerHour: onDemand, Unpriced: onDemand == 0},
			{Zone: "z2", PricePerHour: onDemand, Unpriced: onDemand == 0},
			{Zone: "z1", Spot: true, PricePerHour: spot},
		}}
	}
	for name, tc := range map[string]struct{ now, before, want InstanceType }{
		"told later before":          {of(day(1), 1, 0.3), of(day(9), 2, 0.5), of(day(9), 2, 0.3)},
		"told later now":             {of(day(9), 1, 0.3), of(day(1), 2, 0.5), of(day(9), 1, 0.3)},
		"told of the same":           {of(day(9), 1, 0.3), of(day(9), 2, 0.5), of(day(9), 1, 0.3)},
		"not known now":              {of(time.Time{}, 0, 0.3), of(day(9), 2, 0.5), of(day(9), 2, 0.3)},
		"not known before":           {of(day(1), 1, 0.3), of(time.Time{}, 0, 0.5), of(day(1), 1, 0.3)},
		"a clock that was wrong":     {of(day(1), 1, 0.3), of(day(21), 2, 0.5), of(day(1), 1, 0.3)},
		"a cloud that does not say":  {of(time.Time{}, 1, 0.3), of(time.Time{}, 2, 0.5), of(time.Time{}, 1, 0.3)},
		"another type was told":      {of(day(1), 1, 0.3), InstanceType{Name: "b", PricesTold: day(9)}, of(day(1), 1, 0.3)},
		"a price that is not known":  {of(day(1), 1, 0.3), of(day(9), 0, 0.5), of(day(1), 1, 0.3)},
		"both of them not known now": {of(time.Time{}, 0, 0.3), of(time.Time{}, 0, 0.5), of(time.Time{}, 0, 0.3)},
	} {
		now, before := []InstanceType{tc.now}, []InstanceType{tc.before}
		if got := KeepNewer(now, before, day(20)); !reflect.DeepEqual(got, []InstanceType{tc.want}) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
		if !reflect.DeepEqual(now[0], tc.now) || !reflect.DeepEqual(before[0], tc.before) {
			t.Errorf("%s: what it was given has changed", name)
		}
	}
}

// A dedicated instance has a price of its own.
func TestKeptPricesAreOfTheSameTenancy(t *testing.T) {
	told := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	of := func(shared, dedicated float64, told time.Time) InstanceType {
		return InstanceType{Name: "a", PricesTold: told, Offerings: []PurchaseOption{
			{Zone: "z", Dedicated: true, PricePerHour: dedicated}, {Zone: "z", PricePerHour: shared},
		}}
	}
	want := of(3, 4, told.Add(time.Hour))
	got := KeepNewer([]InstanceType{of(1, 2, told)}, []InstanceType{want}, told.Add(time.Hour))
	if !reflect.DeepEqual(got, []InstanceType{want}) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if newest := Told(append(got, of(1, 1, told), InstanceType{})); !newest.Equal(want.PricesTold) {
		t.Errorf("the newest is of %s", newest)
	}
}
