package cells

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

const (
	// tagMost is how many instances one call tags.
	tagMost = cloud.MaxLaunch
	// mostTagTries is how often the tags of an instance are written, or refused, without being
	// shown. They are for people. An outage is no try.
	mostTagTries = 5
	// Between two tries, also in an outage.
	firstTagRetry, longestTagRetry = 5 * time.Second, 2 * time.Minute
	// labelTries is how often they are written with labels. Then they are written without, since
	// the cloud may refuse a label, which whoever makes pods chooses.
	labelTries = 3
	// wholeTries is how often an instance is tagged only together with its parts: a cloud that refuses a part may only not
	// know it yet. Each of the next tries tags the instance alone, if need be.
	wholeTries = 2
	// longestOwnedWait is how long after its launch an instance is not tagged while the cloud does not show all that it owns.
	// No source says how long that takes. Kip rather tags the instance alone then than not at all.
	longestOwnedWait = 30 * time.Minute
)

// tagging writes the tags that the launching call could not have.
type tagging struct {
	table     *table
	loop      *loop
	calls     *pipe.Pipe
	inventory *inventory
	listLag   time.Duration
	due       *gather[*entry] // whose tags are to be written

	mu   sync.Mutex // of the tags of all cells
	tags perCell[tagState]
}

// tagState is how far the tags of a cell's instance are.
type tagState struct {
	writing bool
	// tries is how often they were written, without outages, since a snapshot last showed them or a pod got the cell.
	tries int
	wait  time.Duration // how long Kip last waited
	after time.Time     // they are not written again before
	parts []string      // what of the instance gets them, too
}

// lacksOwned reports whether the tags of an instance have to wait for what it owns. Kip tags both in one call: so the tags that an
// instance has say that its parts have them, too.
func lacksOwned(i cloud.Instance, now time.Time) bool {
	return i.OwnedLate && now.Before(i.Launched.Add(longestOwnedWait))
}

// run writes tags until ctx ends.
func (s *tagging) run(ctx context.Context) {
	s.due.run(ctx, func(entries []*entry) {
		s.loop.watchdog.Track(ctx, "tags", func(ctx context.Context) { s.tagAll(ctx, entries) })
	})
}

// tagUntagged has the tags written that the launching call could not have, since its
// machines share theirs: of each cell whose instance a snapshot shows without them. What a
// snapshot shows, the cloud knows; right after a launch it need not.
func (s *tagging) tagUntagged(seen snapshot) {
	if s.calls.Optional().Tagger == nil {
		return
	}
	now := s.loop.clock.Now()
	all := s.table.all()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range all {
		cell := e.cell()
		if !cell.Live() || cell.Instance == nil || cell.Launch == nil || !cell.Launch.Shared {
			continue
		}
		i, there := seen.byID[cell.Instance.ID]
		state := s.tags.of(e)
		switch {
		case !there:
		case i.Tags[cloud.TagCell] == cell.ID && i.Tags[cloud.TagPodUID] == string(cell.Pod.UID) && hasLabels(i, cell):
			state.tries, state.wait = 0, 0
		case lacksOwned(i, now):
		case !state.writing && state.tries < mostTagTries && !now.Before(state.after):
			s.tagSoonLocked(e, i.Owned, now)
		}
	}
}

// hasLabels reports whether an instance has the labels of its cell's pod.
func hasLabels(i cloud.Instance, cell *Cell) bool {
	for key, value := range labelTags(cell) {
		if has, there := i.Tags[key]; !there || has != value {
			return false
		}
	}
	return true
}

// tagSoonLocked has the tags of an instance and of its parts written. The caller holds mu.
func (s *tagging) tagSoonLocked(e *entry, parts []string, now time.Time) {
	state := s.tags.of(e)
	// Again later also after a success: a list may be late, and it is all that tells.
	state.wait = min(max(2*state.wait, firstTagRetry), longestTagRetry)
	state.writing, state.after = true, now.Add(s.listLag+state.wait)
	state.parts = parts
	s.due.add(e)
}

// tagAll writes the tags of cells, as far as it can.
func (s *tagging) tagAll(ctx context.Context, entries []*entry) {
	for group := range slices.Chunk(entries, tagMost) {
		taggings, ids := make([]cloud.Tagging, len(group)), make([]string, len(group))
		for n, e := range group {
			cell := e.cell()
			ids[n] = cell.Instance.ID
			s.mu.Lock()
			state := s.tags.of(e)
			taggings[n] = cloud.Tagging{ID: ids[n], Owned: state.parts, Tags: ownTags(*cell), Whole: state.tries < wholeTries}
			if state.tries < labelTries {
				taggings[n].Tags = tags(*cell)
			}
			s.mu.Unlock()
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		results := s.calls.Optional().Tagger.Tag(call, taggings...)
		cancel()
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		for n, e := range group {
			state := s.tags.of(e)
			if state.writing = false; countsAsTry(results[n].Err) {
				state.tries++
			}
		}
		s.mu.Unlock()
		for n, r := range results {
			if r.Err != nil {
				s.loop.log.Warn("tag an instance", "instance", ids[n], "cell", group[n].id, "err", r.Err)
			}
		}
	}
}

// countsAsTry reports whether an answer to a tagging is of the tags: a success, or a refusal that is not of all that Kip asks,
// as with credentials that have expired.
func countsAsTry(err error) bool {
	return err == nil || cloud.Refused(err) && !cloud.ScopeOf(err).Account
}

// tagGiven has the tags of a standby cell written that was given to a pod. The last snapshot mostly shows its instance with all
// parts, so no other has to show them first.
func (s *tagging) tagGiven(e *entry) {
	cell := e.cell()
	if s.calls.Optional().Tagger == nil || !cell.Live() || cell.Instance == nil || cell.Launch == nil || !cell.Launch.Shared {
		return
	}
	i, there := s.inventory.last().byID[cell.Instance.ID]
	now := s.loop.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.tags.of(e)
	state.tries, state.wait = 0, 0                      // they were of other tags
	if there && !lacksOwned(i, now) && !state.writing { // else the next snapshot shows what is missing
		s.tagSoonLocked(e, i.Owned, now)
	}
}
