package cells

import (
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

// snapshot is one answer of the cloud's list. It is never modified once it is shown.
type snapshot struct {
	began time.Time
	byID  map[string]cloud.Instance
	byPod map[types.UID][]string // instance IDs
	// byCell has the instance of a cell, by its JoinID: the one that the record names,
	// where there are several.
	byCell map[string]string
	// lostOrphans are cells of a Kip whose store was lost, standby or not tagged yet:
	// which pods they run, if any, nobody knows.
	lostOrphans []string
	// missing are the zones that it does not cover. If looked is not nil, it covers no others than these.
	missing, looked []string
	// wrong reports whether it lacks the instance of a cell that was heard a short while
	// ago. That it lacks others proves nothing then.
	wrong bool
	// lacks reports whether it does not show all instances of cells that it should: then it
	// does not show either what no cell names yet.
	lacks bool
	// hides are instances that lists do not show, and that are alive: they are told of once.
	hides []string
	// blind is true as long as there is a zone that no snapshot has covered.
	blind bool
	// ended are instances of cells that are surely gone: the cloud said so of them,
	// or two complete snapshots did not show them.
	ended map[string]bool
}

// covers reports whether the snapshot would show an instance of the zone.
func (l snapshot) covers(zone string) bool {
	return cloud.Listing{Missing: l.missing, Looked: l.looked}.Covers(zone)
}

// complete reports whether the snapshot shows all instances, as far as Kip can tell.
func (l snapshot) complete() bool {
	return !l.began.IsZero() && len(l.missing) == 0 && !l.lacks
}

// known is a cell as it was when the cloud had answered.
type known struct {
	cell       *Cell
	cutOff     bool      // its tunnel is down
	heard      bool      // it was heard a short while ago
	addressed  bool      // its instance has all addresses that it needs
	terminated time.Time // when the cloud accepted the termination; zero before
}

// findings are what follows from a snapshot.
type findings struct {
	// wake are the cells that may have waited for the snapshot.
	wake []string
	// absent are those of whose instances the cloud is to be asked.
	absent []absent
	// lacking are the instances of live cells that are not shown.
	lacking []string
	// stopped are those whose instances were stopped by somebody else.
	stopped []*Cell
	// orphans are the instances without a cell that do not end yet, newOrphans how many of
	// them are seen for the first time, and dueOrphans those that were seen for long enough
	// to be ended.
	orphans    []cloud.Instance
	newOrphans int
	dueOrphans []cloud.Instance
}

// newSnapshotLocked makes a snapshot of a listing. Of the instances that no cell has, and that it
// does not show, those are taken over from the last snapshot that may run a pod still:
// those of zones that the listing does not cover, and all that are missing for the
// first time, or in a listing that is wrong of others. next are the sightings that follow. The caller holds mu.
func (v *inventory) newSnapshotLocked(
	began time.Time, listing cloud.Listing, cells []known, owned map[string]bool, next sightings,
) snapshot {
	seen := snapshot{
		began:   began,
		byID:    make(map[string]cloud.Instance, len(listing.Instances)),
		byPod:   map[types.UID][]string{},
		byCell:  make(map[string]string, len(listing.Instances)),
		missing: slices.Clone(listing.Missing),
		looked:  listing.Looked,
	}
	for _, k := range cells {
		// The cloud need not know that Kip once launched there.
		if zone := k.cell.zone(); zone != "" && !listing.Covers(zone) && !slices.Contains(seen.missing, zone) {
			seen.missing = append(seen.missing, zone)
		}
	}
	add := func(i cloud.Instance) {
		seen.byID[i.ID] = i
		seen.byCell[joinIDOf(i)] = i.ID
		if uid := types.UID(i.Tags[cloud.TagPodUID]); uid != "" {
			seen.byPod[uid] = append(seen.byPod[uid], i.ID)
		}
	}
	for _, i := range listing.Instances {
		add(i)
	}
	for _, k := range cells {
		if i := k.cell.Instance; i != nil && k.heard && !v.lags(began, k.cell) && listing.Covers(i.Zone) {
			_, there := seen.byID[i.ID]
			seen.wrong = seen.wrong || !there && !v.sightings.hides(i.ID, began)
		}
	}
	for id, i := range v.latest.byID {
		if _, there := seen.byID[id]; there || owned[id] || v.latest.ended[id] {
			continue
		}
		unlisted := v.sightings.of(id).unlisted
		if !listing.Covers(i.Zone) || seen.wrong || !unlisted {
			next.at(id).unlisted = unlisted || listing.Covers(i.Zone) && !seen.wrong
			add(i)
		}
	}
	if v.blind == nil {
		v.blind = map[string]bool{}
		for _, zone := range seen.missing {
			v.blind[zone] = true
		}
	}
	maps.DeleteFunc(v.blind, func(zone string, _ bool) bool { return listing.Covers(zone) })
	seen.blind = len(v.blind) > 0
	return seen
}
