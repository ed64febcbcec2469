package cells

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
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
	// longestPartsWait is how long after its launch an instance is not tagged while the cloud does not show all of its parts.
	// No source says how long that takes. Kip rather tags the instance alone then than not at all.
	longestPartsWait = 30 * time.Minute
)

// lacksParts reports whether the tags of an instance have to wait for its parts. Kip tags both in one call: so the tags that an
// instance has say that its parts have them, too.
func lacksParts(i cloud.Instance, now time.Time) bool {
	return i.PartsLate && now.Before(i.Launched.Add(longestPartsWait))
}

// tagUntagged has the tags written that the launching call could not have, since its
// machines share theirs: of each cell whose instance a look shows without them. What a
// look shows, the cloud knows; right after a launch it need not.
func (c *Controller) tagUntagged(seen look) {
	if c.cfg.Calls.Features().Tagger == nil {
		return
	}
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.cells {
		cell := e.cell()
		if !cell.Live() || cell.Instance == nil || cell.Launch == nil || !cell.Launch.Shared {
			continue
		}
		i, there := seen.byID[cell.Instance.ID]
		switch {
		case !there:
		case i.Tags[cloud.TagCell] == cell.ID && i.Tags[cloud.TagPodUID] == string(cell.Pod.UID) && hasLabels(i, cell):
			e.tagTries, e.tagWait = 0, 0
		case lacksParts(i, now):
		case !e.tagging && e.tagTries < mostTagTries && !now.Before(e.tagAfter):
			c.tagSoon(e, i.Parts, now)
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

// tagSoon has the tags of an instance and of its parts written. The caller holds mu.
func (c *Controller) tagSoon(e *entry, parts []string, now time.Time) {
	// Again later also after a success: a list may be late, and it is all that tells.
	e.tagWait = min(max(2*e.tagWait, firstTagRetry), longestTagRetry)
	e.tagging, e.tagAfter = true, now.Add(c.cfg.ListLag+e.tagWait)
	e.parts = parts
	c.taggings.add(e)
}

// tagAll writes the tags of cells, as far as it can.
func (c *Controller) tagAll(ctx context.Context, entries []*entry) {
	for group := range slices.Chunk(entries, tagMost) {
		taggings, ids := make([]cloud.Tagging, len(group)), make([]string, len(group))
		for n, e := range group {
			cell := e.cell()
			ids[n] = cell.Instance.ID
			c.mu.Lock()
			taggings[n] = cloud.Tagging{ID: ids[n], Parts: e.parts, Tags: ownTags(*cell), Whole: e.tagTries < wholeTries}
			if e.tagTries < labelTries {
				taggings[n].Tags = tags(*cell)
			}
			c.mu.Unlock()
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		results := c.cfg.Calls.Features().Tagger.Tag(call, taggings...)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if len(results) != len(ids) {
			results = cloud.Each(fmt.Errorf("the cloud answered a tagging of %d with %d results", len(ids), len(results)), ids...)
		}
		c.mu.Lock()
		for n, e := range group {
			if e.tagging = false; countsAsTry(results[n].Err) {
				e.tagTries++
			}
		}
		c.mu.Unlock()
		for n, r := range results {
			if r.Err != nil {
				c.cfg.Log.Warn("tag an instance", "instance", ids[n], "cell", group[n].id, "err", r.Err)
			}
		}
	}
}

// countsAsTry reports whether an answer to a tagging is of the tags: a success, or a refusal that is not of all that Kip asks,
// as with credentials that have expired.
func countsAsTry(err error) bool {
	return err == nil || cloud.Refused(err) && !cloud.ScopeOf(err).Account
}
