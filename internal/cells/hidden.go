package cells

import "time"

// hiddenAge is how long, and in how many lists at least, an instance must be lacking
// that the cloud says is alive before that says nothing of the lists any more: somebody
// may have taken the instance's tags.
const hiddenAge, hiddenLists = 5 * time.Minute, 3

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
