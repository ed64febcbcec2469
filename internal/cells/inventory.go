package cells

import (
	"slices"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

const (
	// cloudSkew is how far the cloud's clock and Kip's may be apart, and some more. An
	// instance that only seems to be older than the store is ended without need; no pod
	// runs on it.
	cloudSkew = 5 * time.Minute
)

// inventory is what the cloud has shown, and for how long it has shown it.
type inventory struct {
	health  Health
	listLag time.Duration
	polls   chan struct{} // asks for a fresh snapshot
	// born is when the store was new. An instance that is older was launched by a Kip whose
	// store was lost. It does not change once cells run.
	born time.Time

	mu     sync.Mutex
	latest snapshot
	// blind are the zones that no snapshot has covered yet; nil before the first.
	blind map[string]bool
	// sightings are those up to the last list.
	sightings sightings
}

func newInventory(health Health, listLag time.Duration) *inventory {
	return &inventory{
		health:    health,
		listLag:   listLag,
		polls:     make(chan struct{}, 1),
		sightings: sightings{},
	}
}

// last returns the last snapshot of the cloud; the zero snapshot before the first.
func (v *inventory) last() snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.latest
}

// orphanCount returns how many instances have no cell.
func (v *inventory) orphanCount() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.sightings.orphans()
}

// compare makes a snapshot of the cloud's answer to a call that began then, and compares
// it with all cells that are there. The snapshot is the last one only when adopt is
// told of it.
func (v *inventory) compare(began time.Time, listing cloud.Listing, cells []known) (seen snapshot, f findings) {
	v.mu.Lock()
	defer v.mu.Unlock()
	owned := map[string]bool{}     // instances that a cell has
	launching := map[string]bool{} // cells whose instance is not known yet, by their JoinIDs
	for _, k := range cells {
		if k.cell.Instance != nil {
			owned[k.cell.Instance.ID] = true
		} else {
			launching[k.cell.JoinID()] = true
		}
	}
	next := sightings{}
	seen = v.newSnapshotLocked(began, listing, cells, owned, next)
	for _, k := range cells {
		v.compareCellLocked(&seen, &f, next, listing, k)
		v.findStoppedLocked(seen, &f, next, k.cell)
	}
	next.keepHidden(v.sightings, seen, owned)
	for id, of := range v.sightings {
		if _, there := seen.byID[id]; there && !owned[id] && !of.orphan.IsZero() {
			next.at(id).orphan = of.orphan // also while it is ending
		}
	}
	for _, i := range seen.byID {
		if !owned[i.ID] && !launching[joinIDOf(i)] && i.Tags[cloud.TagPodUID] == "" &&
			i.Launched.Before(v.born.Add(cloudSkew)) {
			seen.lostOrphans = append(seen.lostOrphans, i.ID)
		}
	}
	for _, i := range listing.Instances {
		if owned[i.ID] || launching[joinIDOf(i)] || i.State == cloud.Terminating {
			continue
		}
		f.orphans = append(f.orphans, i)
		switch first := next.of(i.ID).orphan; {
		case first.IsZero():
			next.at(i.ID).orphan = began
			f.newOrphans++
		case began.Sub(first) >= orphanAge:
			f.dueOrphans = append(f.dueOrphans, i)
		}
	}
	v.sightings = next
	return seen, f
}

// lags reports whether a list need not show the instance of a cell yet, or not as it is: by
// when Kip learned of its launch, since the cloud's clock may be behind.
func (v *inventory) lags(began time.Time, cell *Cell) bool {
	return began.Sub(cell.launched()) < v.listLag || began.Sub(cell.StepTime(apiv1.StepLaunched)) < v.listLag
}

// findStoppedLocked finds a cell whose instance was stopped by hand, or by a cloud that
// took it back: what ran on it has ended. The caller holds mu.
func (v *inventory) findStoppedLocked(seen snapshot, f *findings, next sightings, cell *Cell) {
	if cell.Instance == nil || cell.Stopped || !cell.Live() || v.lags(seen.began, cell) {
		return
	}
	if i, there := seen.byID[cell.Instance.ID]; !there || i.State != cloud.Stopped {
		return
	}
	since := v.sightings.of(cell.Instance.ID).stopped
	before := !since.IsZero()
	if !before {
		since = seen.began
	}
	next.at(cell.Instance.ID).stopped = since
	if before && seen.began.Sub(since) >= missingAge {
		f.stopped = append(f.stopped, cell)
	}
}

// compareCellLocked compares one cell with what is seen. The caller holds mu.
func (v *inventory) compareCellLocked(seen *snapshot, f *findings, next sightings, listing cloud.Listing, k known) {
	cell := k.cell
	if cell.Instance == nil {
		if cell.Phase == apiv1.Requested || cell.Phase == apiv1.Launching || cell.Phase == apiv1.Terminating {
			f.wake = append(f.wake, cell.ID) // it may wait for this snapshot
		}
		return
	}
	id := cell.Instance.ID
	i, there := seen.byID[id]
	if there {
		seen.byCell[cell.JoinID()] = id
	}
	if cell.Phase == apiv1.Terminating || !k.addressed || cell.Stopped && i.State != cell.Instance.State {
		f.wake = append(f.wake, cell.ID)
	}
	if there {
		return
	}
	since := v.sightings.of(id).missing
	before := !since.IsZero()
	notAsked := cell.Phase == apiv1.Terminating && (k.terminated.IsZero() || !seen.began.After(k.terminated))
	if v.lags(seen.began, cell) || notAsked || !listing.Covers(cell.Instance.Zone) {
		if before {
			next.at(id).missing = since
		}
		return
	}
	if cell.Live() && !v.sightings.hides(id, seen.began) {
		f.lacking = append(f.lacking, id)
	}
	// Two lists that are both too old must not hide an instance that still ends.
	apart := seen.began.Sub(since)
	a := absent{cell: cell, twice: before && apart > 0 && (cell.Live() || apart >= v.listLag)}
	if !before {
		since = seen.began
	}
	next.at(id).missing = since
	a.due = cell.Live() && a.twice && seen.began.Sub(since) >= v.health.missingTimeout(k.cutOff)
	if a.due || cell.Phase == apiv1.Terminating {
		f.absent = append(f.absent, a)
	}
}

// adopt takes what the cloud said of the instances that a snapshot does not show, by
// their IDs, makes the snapshot the last one, and returns it.
func (v *inventory) adopt(seen snapshot, f findings, states map[string]cloud.State) snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen.ended = map[string]bool{}
	for _, a := range f.absent {
		id := a.instance()
		switch state := states[id]; {
		case a.gone(state, seen.wrong):
			seen.ended[id] = true
		case state != "" && state != cloud.Unknown:
			of := v.sightings.at(id)
			of.missing = time.Time{} // the list was wrong of it
			if of.hidden.note(seen.began) {
				seen.hides = append(seen.hides, id)
			}
		}
	}
	seen.lacks = seen.wrong || slices.ContainsFunc(f.lacking, func(id string) bool { return !seen.ended[id] })
	v.latest = seen
	return seen
}

// askAnew forgets since when snapshots do not show an instance: what counts is what they
// show from now on.
func (v *inventory) askAnew(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if of := v.sightings[id]; of != nil {
		of.missing = time.Time{}
	}
}

// pollSoon asks for a fresh snapshot; it does not wait for it.
func (v *inventory) pollSoon() {
	select {
	case v.polls <- struct{}{}:
	default:
	}
}
