package catalog

import (
	"encoding/json"
	"testing"
	"time"
)

func TestInterruptionsMakeSpotOfferingsDearerForADay(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	types := []InstanceType{
		{Name: "large", Offerings: []PurchaseOption{{Zone: "a", Spot: true}, {Zone: "b", Spot: true}, {Zone: "a"}}},
		{Name: "other", Offerings: []PurchaseOption{{Zone: "a", Spot: true}}},
	}
	seen := func(ages ...time.Duration) (all Interruptions) {
		for _, age := range ages {
			all = append(all, Interruption{Type: "large", Zone: "a", At: now.Add(-age)})
		}
		return all
	}
	const hour = time.Hour
	for name, c := range map[string]struct {
		seen  Interruptions
		share float64
		want  float64
	}{
		"none":               {nil, 0.1, 0},
		"one":                {seen(hour), 0.1, 0.1},
		"three":              {seen(23*hour, hour, 0), 0.5, 1},
		"one of yesterday":   {seen(24 * hour), 0.1, 0},
		"one of the future":  {seen(-hour), 0.1, 0},
		"never above double": {seen(0, 0, 0, 0, 0), 0.3, 1},
		"where it is off":    {seen(hour), 0, 0},
	} {
		got := c.seen.Apply(types, now, c.share)
		if o := got[0].Offerings; o[0].Risk != c.want || o[1].Risk != 0 || o[2].Risk != 0 || got[1].Offerings[0].Risk != 0 {
			t.Errorf("%s: %+v, want %v in zone a", name, got, c.want)
		}
	}
	if types[0].Offerings[0].Risk != 0 {
		t.Error("the catalogue was changed")
	}
}

func TestInterruptionsAreBounded(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	var all Interruptions
	for range 3 * mostInterruptions {
		all = all.With(Interruption{Type: "u-24tb1.112xlarge", Zone: "ap-southeast-2-local-1a", At: now})
		now = now.Add(time.Second)
	}
	if data, err := json.Marshal(all); err != nil || len(all) != mostInterruptions || len(data) > 256<<10 {
		t.Errorf("%d in %d bytes, %v", len(all), len(data), err)
	}
	if all = all.With(Interruption{At: now.Add(25 * time.Hour)}); len(all) != 1 {
		t.Errorf("%d are known a day later, want 1", len(all))
	}
}
