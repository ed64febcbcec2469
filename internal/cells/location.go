package cells

import "slices"

// location is where machines are launched; the zero one is everywhere.
type location struct{ zone, subnet string }

// location returns where a cell is.
func (e *entry) location() location {
	o := e.cell().Offering()
	return location{zone: o.Zone, subnet: o.Subnet}
}

// within returns the places that a location is in, the widest first: everywhere, its zone and itself.
func (l location) within() []location {
	return slices.Compact([]location{{}, {zone: l.zone}, l})
}

// String tells of the cells of a location, as "cells in zone a".
func (l location) String() string {
	switch {
	case l.subnet != "":
		return "cells in subnet " + l.subnet
	case l.zone != "":
		return "cells in zone " + l.zone
	}
	return "cells"
}
