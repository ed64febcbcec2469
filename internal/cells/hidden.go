package cells

import "time"

// hidden is since when, and how often, a list lacked an instance that is alive.
type hidden struct {
	since time.Time
	lists int
	told  bool
}

// hides says that lists lack the instance for so long that this says nothing of them.
// The caller holds mu.
func (v *inventory) hides(id string, began time.Time) bool {
	return v.hidden[id].counts(began)
}

// counts says that the instance is hidden for so long that it is no fault of a list.
func (h hidden) counts(began time.Time) bool {
	return h.lists >= hiddenLists && began.Sub(h.since) >= hiddenAge
}

// hide notes that a list lacked an instance that is alive. It returns true once, when
// the list counts no more for that. The caller holds mu.
func (v *inventory) hide(id string, began time.Time) (tell bool) {
	h := v.hidden[id]
	if h.lists++; h.lists == 1 {
		h.since = began
	}
	tell = !h.told && h.counts(began)
	h.told = h.told || tell
	v.hidden[id] = h
	return tell
}
