package cells

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// boostLimit is how long a cell may be boosted that has a pod: its images are pulled and unpacked, but its init
	// containers may run for hours.
	boostLimit = 5 * time.Minute
	// boostRetry is the wait between two calls that end the boost of a cell.
	boostRetry = time.Minute
)

// boosted reports whether the cloud is yet to be told that the cell's machine has started.
func (c *Cell) boosted() bool { return !c.StepTime(apiv1.StepBoosted).IsZero() && !c.BoostEnded }

// boosted reports whether the instances of a launch have been launched so that their boost is to be ended.
func (l *launch) boosted() bool { return l.request.Resolved != nil && l.request.Resolved.Boosted }

// PodRunning notes that a pod runs on its cell, which then has started. It may be told of that more than once.
func (c *Controller) PodRunning(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.cells[c.byPod[pod]]; ok && !e.podRuns {
		e.podRuns = true
		c.unboost(e)
	}
}

// unboostAll has the boost of each cell ended for which it is time: of those of which nobody has told, and of those
// whose call has failed or whose end is not stored.
func (c *Controller) unboostAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.cells {
		c.unboost(e)
	}
}

// unboost has the boost of a cell ended, if it is time. A standby cell stays boosted: one that is stopped starts once
// more. The caller holds mu.
func (c *Controller) unboost(e *entry) {
	cell, now := e.cell(), c.cfg.Clock.Now()
	switch {
	case !cell.boosted() || cell.Phase != apiv1.Bound || cell.Instance == nil:
	case !e.podRuns && now.Sub(cell.StepTime(apiv1.StepBound)) < boostLimit:
	case e.unboosting || now.Before(e.unboostAfter):
	default:
		e.unboosting, e.unboostAfter = true, now.Add(boostRetry)
		c.boosts.add(e)
	}
}

// endBoosts ends the boosts of cells, and stores that. What fails is tried again: the record of a cell says
// nothing of an end until the cloud has ended it.
func (c *Controller) endBoosts(ctx context.Context, entries []*entry) {
	for group := range slices.Chunk(entries, tagMost) {
		ended := slices.DeleteFunc(c.endBoostsOf(ctx, group), func(e *entry) bool { return e.cell().Phase == apiv1.Gone })
		if len(ended) > 0 {
			err := c.commit(ctx, ended, func(_ int, cell *Cell) error {
				cell.BoostEnded = true
				return nil
			})
			switch {
			case refusedWrite(err):
				c.fail(err)
			case err != nil && ctx.Err() == nil:
				c.cfg.Log.Warn("store that cells are not boosted, retrying", "cells", len(ended), "err", err)
			}
		}
		c.mu.Lock()
		for _, e := range group {
			e.unboosting = false
		}
		c.mu.Unlock()
	}
}

// endBoostsOf returns those of a group whose boost the cloud has ended.
func (c *Controller) endBoostsOf(ctx context.Context, group []*entry) (ended []*entry) {
	booster, ids := c.cfg.Calls.Features().Booster, make([]string, len(group))
	for n, e := range group {
		ids[n] = e.cell().Instance.ID
	}
	if booster == nil {
		return nil // the cloud is another than it was
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	results := booster.EndBoost(call, ids...)
	cancel()
	if len(results) != len(ids) {
		results = cloud.Each(fmt.Errorf("the cloud answered an end of %d boosts with %d results", len(ids), len(results)), ids...)
	}
	for n, r := range results {
		if r.Err == nil {
			ended = append(ended, group[n])
		}
	}
	if err := results.Err(); err != nil && ctx.Err() == nil {
		c.cfg.Log.Warn("end the boost of cells, retrying", "cells", len(ids)-len(ended), "err", err)
	}
	return ended
}
