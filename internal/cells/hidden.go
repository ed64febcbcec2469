package cells

import "time"

// An instance that the cloud says is alive makes a list incomplete that lacks it. Not so after hiddenAge and hiddenLists
// lists without it: somebody may have removed its tags.
const hiddenAge, hiddenLists = 5 * time.Minute, 3

// hidden is since when, and how often, a list lacked an instance that is alive.
type hidden struct {
	since time.Time
	lists int
	told  bool
}

// hidesLocked reports whether lists have lacked the instance for so long that they may be complete without it.
// The caller holds mu.
func (v *inventory) hidesLocked(id string, began time.Time) bool {
	return v.hidden[id].counts(began)
}

// counts says that the instance is hidden for so long that it is no fault of a list.
func (h hidden) counts(began time.Time) bool {
	return h.lists >= hiddenLists && began.Sub(h.since) >= hiddenAge
}

// hideLocked notes that a list lacked an instance that is alive. It returns true once, when
// the list counts no more for that. The caller holds mu.
func (v *inventory) hideLocked(id string, began time.Time) (tell bool) {
	h := v.hidden[id]
	if h.lists++; h.lists == 1 {
		h.since = began
	}
	tell = !h.told && h.counts(began)
	h.told = h.told || tell
	v.hidden[id] = h
	return tell
}
