package catalog

import (
	"slices"
	"time"
)

// KeepNewer returns a catalogue with the prices of one that was read before, where those were told
// later: a cloud that cannot read its price list tells prices of an older day. What is said to
// be told after at counts for nothing, since some clock was wrong. Spot prices stay. Neither
// catalogue is changed.
func KeepNewer(types, before []InstanceType, at time.Time) []InstanceType {
	known := make(map[string]*InstanceType, len(before))
	for i := range before {
		known[before[i].Name] = &before[i]
	}
	types = slices.Clone(types)
	for i := range types {
		t := &types[i]
		old := known[t.Name]
		if old == nil || !old.PricesTold.After(t.PricesTold) || old.PricesTold.After(at) {
			continue
		}
		kept := false
		t.Offerings = slices.Clone(t.Offerings)
		for n := range t.Offerings {
			o := &t.Offerings[n]
			// The zones of a region have one price, and so has a reservation, but for one that was paid in advance.
			same := func(other PurchaseOption) bool {
				return !other.Spot && !other.Unpriced && other.Dedicated == o.Dedicated && other.Reservation == ""
			}
			paid := o.Reservation != "" && o.Unpriced
			if from := slices.IndexFunc(old.Offerings, same); !o.Spot && !paid && from >= 0 {
				o.PricePerHour, o.Unpriced, kept = old.Offerings[from].PricePerHour, false, true
			}
		}
		if kept {
			t.PricesTold = old.PricesTold
		}
	}
	return types
}

// Told is when the newest of the prices was told that are not spot's; zero where no type says.
func Told(types []InstanceType) (newest time.Time) {
	for i := range types {
		if types[i].PricesTold.After(newest) {
			newest = types[i].PricesTold
		}
	}
	return newest
}
