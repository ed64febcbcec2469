package placement

import (
	"slices"
	"strings"

	"github.com/elotl/kip/internal/offering"
)

// unplaceable is the error when no type fits.
func (c *choice) unplaceable() *UnplaceableError {
	if c.fit.failed == nil {
		c.fit = c.walk(true)
	}
	e := &UnplaceableError{Need: c.need.text(c.config.ReservedMemoryBytes), Rejections: c.rejections()}
	for _, r := range e.Rejections {
		e.Considered += r.Types
	}
	return e
}

// noCapacity is the error when types fit and none is available.
func (c *choice) noCapacity() *NoCapacityError {
	e := &NoCapacityError{Need: c.need.text(c.config.ReservedMemoryBytes), LaunchTypes: launchTypes(c.capacityTypes)}
	for i, m := range c.capacityTypes {
		var cheapest []candidate // of each row
		for next := range c.candidates(m, c.fit.rows[i]) {
			if n := len(cheapest); n == 0 || cheapest[n-1].row != next.row {
				cheapest = append(cheapest, next)
			}
		}
		slices.SortFunc(cheapest, func(a, b candidate) int {
			if c.before(m, a, b) {
				return -1
			}
			return 1
		})
		for _, next := range cheapest {
			if name := c.types[m.rows[next.row].typ].Name; !slices.Contains(e.Types, name) {
				e.Types = append(e.Types, name)
			}
		}
	}
	return e
}

// ruledOut returns why types are not among the offerings, by count, and how many types are left. The walk was recorded.
func (c *choice) ruledOut(unavailable func(offering.Key) bool) (list []Rejection, left int) {
	available := map[int]bool{} // types
	for i, m := range c.capacityTypes {
		for next := range c.candidates(m, c.fit.rows[i]) {
			if typ := m.rows[next.row].typ; !available[typ] && (unavailable == nil || !unavailable(c.key(m, next))) {
				available[typ] = true
			}
		}
	}
	list, left = c.rejections(), len(available)
	if short := len(c.failed(fits)) - left; short > 0 {
		list = append(list, rejection(short, "have no capacity now"))
	}
	return list, left
}

// rejections counts the types that do not fit by the condition at which each fails. The walk was recorded.
func (c *choice) rejections() (list []Rejection) {
	for n, one := range conditions {
		types := c.failed(n)
		if len(types) == 0 {
			continue
		}
		r := rejection(len(types), one.words(c))
		if one.of != nil {
			if of := one.of(c, types); of != "" {
				r.Why += " (" + of + ")"
			}
		}
		list = append(list, r)
	}
	return list
}

// failed are the types that fail at a condition, or that fit.
func (c *choice) failed(at int) (types []int) {
	for typ, failed := range c.fit.failed {
		if failed == at {
			types = append(types, typ)
		}
	}
	return types
}

// rejection counts types by words that begin with a verb in the plural.
func rejection(n int, words string) Rejection {
	if n == 1 {
		words = singular(words)
	}
	return Rejection{Types: n, Why: words}
}

// singular makes the leading verb of words agree with one type.
func singular(words string) string {
	if rest, ok := strings.CutPrefix(words, "are "); ok {
		return "is " + rest
	}
	return "has " + strings.TrimPrefix(words, "have ")
}
