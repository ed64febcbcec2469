package catalog

import "slices"

// Resources is what a machine has for pods and for the cell itself.
type Resources struct {
	MilliCPU    int64 `json:"milliCPU"`
	MemoryBytes int64 `json:"memoryBytes"`
}

// None reports whether it is nothing at all.
func (r Resources) None() bool { return r == Resources{} }

// Sub returns what r has more of than another.
func (r Resources) Sub(other Resources) Resources {
	return Resources{MilliCPU: max(0, r.MilliCPU-other.MilliCPU), MemoryBytes: max(0, r.MemoryBytes-other.MemoryBytes)}
}

const (
	// mostLearnt is how many types, each by its image, are known at most: of more, that
	// which was learnt least lately is forgotten.
	mostLearnt = 1000
	// lastMachines is how many machines of a type count, and agreeing how many there must be.
	lastMachines, agreeing = 5, 3
	// memoryGrain is what memory is counted in: it varies by some KiB from boot to boot.
	memoryGrain = 1 << 20
)

// Learnt is what machines have turned out to have, by type and image; those that were
// learnt last are last.
type Learnt []Lesson

// Lesson is what the last machines of a type with an image had, the oldest first.
type Lesson struct {
	Type     string      `json:"t"`
	Image    string      `json:"i,omitempty"`
	Machines []Resources `json:"m"`
}

func (l Learnt) of(instanceType, image string) int {
	return slices.IndexFunc(l, func(one Lesson) bool { return one.Type == instanceType && one.Image == image })
}

// With returns what is known with one machine more. It is false where that says nothing new:
// a type of which enough are known is taken to have what it was.
func (l Learnt) With(instanceType, image string, has Resources) (Learnt, bool) {
	if has.MilliCPU <= 0 || has.MemoryBytes <= 0 {
		return l, false
	}
	has.MemoryBytes -= has.MemoryBytes % memoryGrain
	one := Lesson{Type: instanceType, Image: image}
	at := l.of(instanceType, image)
	if at >= 0 {
		one = l[at]
	}
	few := len(one.Machines) < lastMachines
	before, _ := one.resources()
	one.Machines = append(slices.Clone(one.Machines[max(0, len(one.Machines)-lastMachines+1):]), has)
	after, _ := one.resources()
	next := make(Learnt, 0, len(l)+1)
	for i, other := range l {
		if i != at {
			next = append(next, other)
		}
	}
	next = append(next, one)
	return next[max(0, len(next)-mostLearnt):], few || after != before
}

// room is what a machine is taken to have: the median of each. It is false as long as too
// few machines have told.
func (l Lesson) resources() (Resources, bool) {
	n := len(l.Machines)
	if n < agreeing {
		return Resources{}, false
	}
	median := func(of func(Resources) int64) int64 {
		all := make([]int64, n)
		for i, m := range l.Machines {
			all[i] = of(m)
		}
		slices.Sort(all)
		return all[(n-1)/2]
	}
	return Resources{
		MilliCPU:    median(func(r Resources) int64 { return r.MilliCPU }),
		MemoryBytes: median(func(r Resources) int64 { return r.MemoryBytes }),
	}, true
}

// Apply returns the types with what was learnt of them with an image: never more than the
// type promises, nor less than three quarters of its memory and half of its CPU. The
// catalogue is not changed.
func (l Learnt) Apply(types []InstanceType, image string) []InstanceType {
	known := map[string]Resources{}
	for _, one := range l {
		if r, ok := one.resources(); ok && one.Image == image {
			known[one.Type] = r
		}
	}
	if len(known) == 0 {
		return types
	}
	types = slices.Clone(types)
	for i := range types {
		t := &types[i]
		r, ok := known[t.Name]
		if !ok {
			continue
		}
		t.Learnt = Resources{
			MilliCPU:    min(max(r.MilliCPU, t.MilliCPU/2), t.MilliCPU),
			MemoryBytes: min(max(r.MemoryBytes, t.MemoryBytes/4*3), t.MemoryBytes),
		}
	}
	return types
}
