package cells

import (
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// sightings are what the cloud's lists have shown of instances so far, by their IDs. They alone say whether an instance is gone, or may be:
// a list may lack what is there. Each list makes new ones from those of the last, so what no longer holds is forgotten. They are under the
// lock of the inventory.
//
// An instance that a cell has is gone when the cloud says so of it, or when it knows nothing of it and two complete lists do not show it
// (absent.gone). The cloud is asked of a live cell's when lists have not shown it for some time (sighting.missing). One that is stopped
// by somebody else is as good as gone, since what ran there has ended (sighting.stopped). An instance without a cell is gone when
// two lists that are wrong of no other do not show it (sighting.unlisted). Until then it may run a pod.
type sightings map[string]*sighting

// sighting is what lists have shown of one instance. A time is zero if they have not.
type sighting struct {
	missing  time.Time // since when complete lists do not show it, and a cell has it
	stopped  time.Time // since when it is stopped, a cell has it, and Kip has not stopped it
	orphan   time.Time // since when it is there without a cell
	unlisted bool      // a list has not shown it, and it has no cell
	hidden   hidden    // lists lack it, and the cloud says that it is alive
}

// of returns what is known of an instance; the zero value for nothing.
func (s sightings) of(id string) sighting {
	if known := s[id]; known != nil {
		return *known
	}
	return sighting{}
}

// at returns what is known of an instance, to be changed.
func (s sightings) at(id string) *sighting {
	if s[id] == nil {
		s[id] = new(sighting)
	}
	return s[id]
}

// orphans returns how many instances have no cell.
func (s sightings) orphans() (n int) {
	for _, of := range s {
		if !of.orphan.IsZero() {
			n++
		}
	}
	return n
}

// hides reports whether lists have lacked an instance that is alive for so long that they may be complete without it.
func (s sightings) hides(id string, began time.Time) bool { return s.of(id).hidden.counts(began) }

// keepHidden takes over from the last sightings which instances of cells are hidden yet.
func (s sightings) keepHidden(last sightings, seen snapshot, owned map[string]bool) {
	for id, of := range last {
		if _, there := seen.byID[id]; of.hidden.lists > 0 && !there && owned[id] {
			s.at(id).hidden = of.hidden
		}
	}
}

// An instance that the cloud says is alive makes a list incomplete that lacks it. Not so after hiddenAge and hiddenLists
// lists without it: somebody may have removed its tags.
const hiddenAge, hiddenLists = 5 * time.Minute, 3

// hidden is since when, and how often, a list lacked an instance that is alive.
type hidden struct {
	since    time.Time
	lists    int
	reported bool
}

// counts reports whether the instance is hidden for so long that it is no fault of a list.
func (h hidden) counts(began time.Time) bool {
	return h.lists >= hiddenLists && began.Sub(h.since) >= hiddenAge
}

// note notes that a list lacked the instance. It returns true once, when the list counts no more for that.
func (h *hidden) note(began time.Time) (isNews bool) {
	if h.lists++; h.lists == 1 {
		h.since = began
	}
	isNews = !h.reported && h.counts(began)
	h.reported = h.reported || isNews
	return isNews
}

// absent is a cell whose instance a snapshot does not show though it covers its zone.
type absent struct {
	cell  *Cell
	twice bool // an earlier complete snapshot did not show it either
	due   bool // it is alive, and has been missing for as long as it may be
}

func (a absent) instance() string { return a.cell.Instance.ID }

// gone reports whether the instance is gone, by what the cloud says of it: "" for nothing. wrong is as in snapshot.
func (a absent) gone(state cloud.State, wrong bool) bool {
	return state == cloud.Gone || state == cloud.Unknown && a.twice && !wrong
}
