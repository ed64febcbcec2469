package placement

import (
	"iter"
	"slices"
)

// walk goes through the conditions with all types that the choice considers. fit is what it finds: which fit, and, as
// far as it is recorded, at which condition each of the others fails.
type fit struct {
	rows []set // that fit, of each capacity type of the choice
	// failed is the condition at which each type fails, or fits or notConsidered; nil where it was not recorded.
	failed []int
}

const (
	fits          = -1
	notConsidered = -2
)

// walk returns what fits. record says of all others where they fail, which takes longer.
func (c *choice) walk(record bool) fit {
	f := fit{rows: make([]set, len(c.capacityTypes))}
	for i, m := range c.capacityTypes {
		f.rows[i] = c.considered(m)
	}
	if record {
		c.record(&f)
		return f
	}
	for _, n := range quickFirst {
		for i, m := range c.capacityTypes {
			conditions[n].keep(c, m, f.rows[i])
		}
	}
	return f
}

// record is the walk that notes at which condition each type fails: that of its rows which comes the furthest.
func (c *choice) record(f *fit) {
	f.failed = make([]int, len(c.types))
	for typ := range c.types {
		switch {
		case c.only >= 0 && c.only != typ || !c.names.match(c.types[typ].Name):
			f.failed[typ] = notConsidered
		case len(c.rowsOf(typ)) == 0:
			f.failed[typ] = slices.IndexFunc(conditions, func(one condition) bool { return one.unsold != nil && one.unsold(c, typ) })
		}
	}
	note := func(m *capacityType, rows set, as int) {
		for i := rows.next(0); i >= 0; i = rows.next(i + 1) {
			f.failed[m.rows[i].typ] = as
		}
	}
	for n, one := range conditions {
		for i, m := range c.capacityTypes {
			if one.keep != nil {
				fail := slices.Clone(f.rows[i])
				one.keep(c, m, f.rows[i])
				fail.drop(f.rows[i])
				note(m, fail, n)
			}
		}
	}
	for i, m := range c.capacityTypes {
		note(m, f.rows[i], fits)
	}
}

// considered are the rows of a capacity type of which the pod's annotation does not name others.
func (c *choice) considered(m *capacityType) set {
	switch {
	case c.only >= 0:
		one := newSet(len(m.rows))
		if i := m.rowOf[c.only]; i >= 0 {
			one.add(i)
		}
		return one
	case c.named != nil:
		return slices.Clone(c.named[m.launchType])
	}
	return slices.Clone(m.all)
}

// rowsOf are the rows of a type in the capacity types of the choice.
func (c *choice) rowsOf(typ int) (rows []*row) {
	for _, m := range c.capacityTypes {
		if i := m.rowOf[typ]; i >= 0 {
			rows = append(rows, &m.rows[i])
		}
	}
	return rows
}

// keepEach removes the rows for which passes returns false.
func (m *capacityType) keepEach(rows set, passes func(*row, *size) bool) {
	for i := rows.next(0); i >= 0; i = rows.next(i + 1) {
		if !passes(&m.rows[i], &m.sizes[i]) {
			rows.remove(i)
		}
	}
}

// candidate is an offering before it is written out: the indices of its row in
// the capacity type and of its offering in the row. It has no pointers, since it is moved
// about.
type candidate struct {
	cost          float64
	row, offering int32
}

// candidates yields the offerings of rows that fit, which the pod may have. Those of one row follow each other, in order of
// price, and rows are in the order of their first.
func (c *choice) candidates(m *capacityType, rows set) iter.Seq[candidate] {
	return func(yield func(candidate) bool) {
		for i := rows.next(0); i >= 0; i = rows.next(i + 1) {
			s, r := &m.sizes[i], &m.rows[i]
			extra := c.paid[min(r.disk, 1)] + c.credits(r)
			for j, o := range r.offerings {
				if c.allows(r, s, o) && !yield(candidate{cost: o.price + extra, row: int32(i), offering: int32(j)}) {
					return
				}
			}
		}
	}
}
