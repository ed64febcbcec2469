package placement

import (
	"cmp"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/offering"
)

// Offerings returns the offerings that a pod can be launched on, cheapest first
// (of equal cost: the smaller type, then by name, zone and subnet), at most
// MaxOfferings. Of spot the first are spread, as Config.SpotSpread says. Where a pod
// names several launch types, all offerings of the first come before those of the next, and likewise where its
// requirements are an ordered list.
// What unavailable reports to have no capacity is left out; nil leaves nothing out.
//
// The errors are *InvalidAnnotationError (several may be joined),
// *UnplaceableError and *NoCapacityError.
func (p *Placer) Offerings(pod *corev1.Pod, unavailable func(offering.Key) bool) ([]offering.Offering, error) {
	all, err := p.choicesFor(pod)
	if err != nil {
		return nil, err
	}
	return all.offerings(unavailable)
}

// offerings is Offerings.
func (c *choice) offerings(unavailable func(offering.Key) bool) ([]offering.Offering, error) {
	all, err := c.rank(unavailable)
	if err != nil {
		return nil, err
	}
	list := make([]offering.Offering, len(all))
	for i := range all {
		list[i] = all[i].Offering
	}
	return list, nil
}

// rank is offerings with what they are ordered by.
func (c *choice) rank(unavailable func(offering.Key) bool) ([]ranked, error) {
	fitting, available := 0, 0
	searched := make([]found, 0, len(c.capacityTypes))
	for _, m := range c.capacityTypes {
		f := c.search(m, unavailable)
		fitting += f.fitting
		available += len(f.best)
		searched = append(searched, f)
	}
	switch {
	case available > 0:
		return c.best(searched, min(available, MaxOfferings)), nil
	case fitting > 0:
		return nil, c.noCapacity()
	default:
		return nil, c.unplaceable()
	}
}

// candidate is an offering before it is written out: the indices of its row in
// the capacity type and of its offering in the row. It has no pointers, since it is moved
// about.
type candidate struct {
	cost          float64
	row, offering int32
}

// before is the order of candidates of one capacity type. Subnets of a zone are looked at in
// their order, and so stay in it.
func (c *choice) before(m *capacityType, a, b candidate) bool {
	if a.cost != b.cost { // nearly always
		return a.cost < b.cost
	}
	r, q := &m.rows[a.row], &m.rows[b.row]
	s, t := &c.types[r.typ], &c.types[q.typ]
	return cmp.Or(
		cmp.Compare(s.MilliCPU, t.MilliCPU),
		cmp.Compare(s.MemoryBytes, t.MemoryBytes),
		cmp.Compare(r.typ, q.typ), // types are sorted by name
		strings.Compare(c.zones[r.offerings[a.offering].zone], c.zones[q.offerings[b.offering].zone]),
	) < 0
}

// found is the outcome of a search.
type found struct {
	capacityType *capacityType
	best         []candidate // in order
	fitting      int         // types that fit, available or not
	skipped      candidate   // the cheapest of what fits but is unavailable
	skips        bool        // whether there is such a one
}

// search looks at the types of a capacity type that fit. Only offerings of the cheapest are
// looked at, since rows are in order of price, and a price is never above the cost.
func (c *choice) search(m *capacityType, unavailable func(offering.Key) bool) found {
	fitting := c.fitting(m)
	f := found{capacityType: m, best: make([]candidate, 0, MaxOfferings), fitting: fitting.count()}
	dearest := math.Inf(1) // the cost of the last of the best, once they are MaxOfferings
	// unpriced reports whether that is of a row without a price: these are in the order of
	// candidates already, and all that follow come after it.
	unpriced := false
	for i := fitting.next(0); i >= 0; i = fitting.next(i + 1) {
		s, r := &m.sizes[i], &m.rows[i]
		if s.price > dearest || unpriced && math.IsInf(s.price, 1) { // as all that follow
			break
		}
		extra := c.paid[min(r.disk, 1)] + c.credits(r)
		for j, o := range r.offerings {
			if !c.allows(r, s, o) {
				continue
			}
			next := candidate{cost: o.price + extra, row: int32(i), offering: int32(j)}
			if next.cost > dearest || len(f.best) == MaxOfferings && !c.before(m, next, f.best[MaxOfferings-1]) {
				continue
			}
			if unavailable != nil && unavailable(c.key(r, o)) {
				if !f.skips || c.before(m, next, f.skipped) {
					f.skipped, f.skips = next, true
				}
				continue
			}
			f.best = c.insert(m, f.best, next)
			if len(f.best) == MaxOfferings {
				last := f.best[MaxOfferings-1]
				dearest = last.cost
				unpriced = math.IsInf(m.sizes[last.row].price, 1)
			}
		}
	}
	return f
}

// fitting are the types of a capacity type that fit, and are offered where the pod may run.
func (c *choice) fitting(m *capacityType) set {
	fit := c.where(m)
	m.milliCPU.keep(fit, c.least.milliCPU)
	m.memory.keep(fit, c.least.memory)
	m.disk.keep(fit, c.least.disk)
	m.gpus.keep(fit, c.least.gpus)
	switch {
	case c.only >= 0:
		one := newSet(len(m.rows))
		if i := m.rowOf[c.only]; i >= 0 {
			one.add(i)
		}
		fit.keep(one)
	case c.named != nil:
		fit.keep(c.named[m.launchType])
	}
	// Each offering of a type is looked at only to know whether one is what the pod asks for
	// beside a place, or costs no more than it may.
	byOffering := c.requirements != nil || c.most > 0 || c.deviceless
	if !c.picky && !byOffering {
		return fit
	}
	for i := fit.next(0); i >= 0; i = fit.next(i + 1) {
		if s := &m.sizes[i]; c.picky && !c.picks(s) || byOffering && !c.offered(&m.rows[i], s) {
			fit.remove(i)
		}
	}
	return fit
}

// where are the types of a capacity type that are offered where the pod may run.
func (c *choice) where(m *capacityType) set {
	where := newSet(len(m.rows))
	for i, arch := range c.archs {
		switch {
		case c.arch != "" && c.arch != arch:
		case c.allowed == nil:
			where.unite(m.archs[i])
		default:
			for j := i * len(c.zones); j < (i+1)*len(c.zones); j++ {
				if c.allowed[j] {
					where.unite(m.offered[j])
				}
			}
		}
	}
	return where
}

// insert puts a candidate in its place among the best, of which it drops the
// last when they are too many.
func (c *choice) insert(m *capacityType, best []candidate, next candidate) []candidate {
	if len(best) < MaxOfferings {
		best = append(best, next)
	}
	at := len(best) - 1
	for ; at > 0 && c.before(m, next, best[at-1]); at-- {
		best[at] = best[at-1]
	}
	best[at] = next
	return best
}

// noCapacity is the error when types fit and none is available.
func (c *choice) noCapacity() *NoCapacityError {
	e := &NoCapacityError{Need: c.need.text(c.config.ReservedMemoryBytes), LaunchTypes: launchTypes(c.capacityTypes)}
	for _, m := range c.capacityTypes {
		var fitting []candidate
		fits := c.fitting(m)
		for i := fits.next(0); i >= 0; i = fits.next(i + 1) {
			s, r := &m.sizes[i], &m.rows[i]
			// Offerings are in order of price: the first is the type's cheapest.
			if j := slices.IndexFunc(r.offerings, func(o pricedOffering) bool { return c.allows(r, s, o) }); j >= 0 {
				cost := r.offerings[j].price + (c.paid[min(r.disk, 1)] + c.credits(r))
				fitting = append(fitting, candidate{cost: cost, row: int32(i), offering: int32(j)})
			}
		}
		slices.SortFunc(fitting, func(a, b candidate) int {
			if c.before(m, a, b) {
				return -1
			}
			return 1
		})
		for _, f := range fitting {
			if name := c.types[m.rows[f.row].typ].Name; !slices.Contains(e.Types, name) {
				e.Types = append(e.Types, name)
			}
		}
	}
	return e
}
