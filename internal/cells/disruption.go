package cells

import (
	"slices"
	"strings"
)

const (
	// When more than disruptionShare of the cells of a place are silent at once, and at
	// least disruptionLeast, the fault is on Kip's side, or on the way there. To end
	// them all would be worse than to wait. The node controller's
	// unhealthy-zone-threshold is the same share.
	disruptionShare, disruptionLeast = 0.55, 3
)

// silentCount is how many cells may end for their silence, and how many of them are silent.
type silentCount struct{ bounded, silent int }

// silentCounts are those of all places.
type silentCounts map[location]silentCount

// add counts a cell, which may be silent.
func (h silentCounts) add(l location, silent bool) {
	for _, place := range l.within() {
		in := h[place]
		if in.bounded++; silent {
			in.silent++
		}
		h[place] = in
	}
}

// disruptions are the places of which most cells are silent at once.
type disruptions map[location]bool

func (h silentCounts) disruptions() disruptions {
	d := disruptions{}
	for place, in := range h {
		if in.silent >= disruptionLeast && float64(in.silent) > disruptionShare*float64(in.bounded) {
			d[place] = true
		}
	}
	return d
}

// of returns the widest of them that a location is in.
func (d disruptions) of(l location) (place location, is bool) {
	for _, place := range l.within() {
		if d[place] {
			return place, true
		}
	}
	return location{}, false
}

// why returns why no cell of a location ends for its silence; "" if one may.
func (d disruptions) why(l location) string {
	place, is := d.of(l)
	if !is {
		return ""
	}
	return "most " + place.String() + " are silent at once, so the fault may be Kip's own network, or the way there"
}

// over reports whether a place was disrupted, and is no longer.
func (d disruptions) over(now disruptions) bool {
	for place := range d {
		if !now[place] {
			return true
		}
	}
	return false
}

func (d disruptions) String() string {
	all := make([]string, 0, len(d))
	for place := range d {
		all = append(all, place.String())
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
