package catalog

import (
	"slices"
	"time"
)

const (
	// rememberedFor is how long an interruption counts, and mostInterruptions how many are
	// known at most: of more, the oldest are forgotten.
	rememberedFor, mostInterruptions = 24 * time.Hour, 1000
	// mostRisk is how much dearer interruptions make an offering at most, as a share.
	mostRisk = 1
)

// Interruptions are the spot instances that clouds have announced to take back, the oldest
// first.
type Interruptions []Interruption

// Interruption is one of them.
type Interruption struct {
	Type string    `json:"t"`
	Zone string    `json:"z,omitempty"`
	At   time.Time `json:"at"`
}

// With returns them with one more, without those that count no longer.
func (all Interruptions) With(one Interruption) Interruptions {
	next := append(all.since(one.At), one)
	return next[max(0, len(next)-mostInterruptions):]
}

// since returns those that still count; one of the future does not.
func (all Interruptions) since(now time.Time) Interruptions {
	return slices.DeleteFunc(slices.Clone(all), func(i Interruption) bool {
		age := now.Sub(i.At)
		return age < 0 || age >= rememberedFor
	})
}

// Apply returns the types with the risk of their spot offerings: each interruption that still
// counts, of the type in the zone, adds a share to it. The catalogue is not changed.
func (all Interruptions) Apply(types []InstanceType, now time.Time, share float64) []InstanceType {
	type offering struct{ instanceType, zone string }
	count := map[offering]float64{}
	of := map[string]bool{}
	for _, i := range all.since(now) {
		count[offering{i.Type, i.Zone}]++
		of[i.Type] = true
	}
	if len(of) == 0 || share <= 0 {
		return types
	}
	types = slices.Clone(types)
	for i := range types {
		t := &types[i]
		if !of[t.Name] {
			continue
		}
		t.Offerings = slices.Clone(t.Offerings)
		for j := range t.Offerings {
			if o := &t.Offerings[j]; o.Spot {
				o.Risk = min(mostRisk, share*count[offering{t.Name, o.Zone}])
			}
		}
	}
	return types
}
