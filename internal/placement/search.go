package placement

import (
	"cmp"
	"math"
	"strings"

	"github.com/elotl/kip/internal/offering"
)

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

// search finds the best offerings among the rows of a capacity type that fit. It looks at those of the cheapest
// rows alone, since rows are in order of price, and a price is never above the cost.
func (c *choice) search(m *capacityType, rows set, unavailable func(offering.Key) bool) found {
	f := found{capacityType: m, best: make([]candidate, 0, MaxOfferings), fitting: rows.count()}
	dearest := math.Inf(1) // the cost of the last of the best, once they are MaxOfferings
	// unpriced reports whether that is of a row without a price: these are in the order of
	// candidates already, and all that follow come after it.
	unpriced := false
	for next := range c.candidates(m, rows) {
		if price := m.sizes[next.row].price; price > dearest || unpriced && math.IsInf(price, 1) { // as all that follow
			break
		}
		if next.cost > dearest || len(f.best) == MaxOfferings && !c.before(m, next, f.best[MaxOfferings-1]) {
			continue
		}
		if unavailable != nil && unavailable(c.key(m, next)) {
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
	return f
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
