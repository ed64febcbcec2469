package cells

import (
	"context"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// boostLimit is how long a cell may be boosted that has a pod: its images are pulled and unpacked, but its init
	// containers may run for hours.
	boostLimit = 5 * time.Minute
	// boostRetry is the wait between two calls that end the boost of a cell.
	boostRetry = time.Minute
	// boostMost is how many boosts one call ends.
	boostMost = cloud.MaxLaunch
)

// boosted reports whether the cloud is yet to be told that the cell's machine has started.
func (c *Cell) boosted() bool { return !c.StepTime(apiv1.StepBoosted).IsZero() && !c.BoostEnded }

// boosted reports whether the instances of a launch have been launched so that their boost is to be ended.
func (l *launch) boosted() bool { return l.request.Resolved != nil && l.request.Resolved.Boosted }

// boosting ends the boost of cells that have started.
type boosting struct {
	table   *table
	loop    *loop
	records *records
	calls   *pipe.Pipe
	due     *gather[*entry] // whose boost is to be ended

	mu     sync.Mutex          // of the boosts of all cells
	boosts perCell[boostState] // under mu
}

// boostState is how far the end of a cell's boost is.
type boostState struct {
	podRuns bool      // its pod was seen to run
	ending  bool      // the cloud is being asked to end it
	after   time.Time // it is not asked again before
}

// run ends boosts until ctx ends.
func (s *boosting) run(ctx context.Context) {
	s.due.run(ctx, func(entries []*entry) {
		s.loop.watchdog.Track(ctx, "boosts", func(ctx context.Context) { s.end(ctx, entries) })
	})
}

// podRunning is Controller.PodRunning.
func (s *boosting) podRunning(pod types.UID) {
	e := s.table.ofPod(pod)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e == nil {
		return
	}
	if state := s.boosts.of(e); !state.podRuns {
		state.podRuns = true
		s.unboostLocked(e)
	}
}

// unboostAll has the boost of each cell ended for which it is time: of those of which nobody has told, and of those
// whose call has failed or whose end is not stored.
func (s *boosting) unboostAll() {
	all := s.table.all()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range all {
		s.unboostLocked(e)
	}
}

// unboostLocked has the boost of a cell ended, if it is time. A standby cell stays boosted: one that is stopped starts once
// more. The caller holds mu.
func (s *boosting) unboostLocked(e *entry) {
	cell, now, state := e.cell(), s.loop.clock.Now(), s.boosts.of(e)
	switch {
	case !cell.boosted() || cell.Phase != apiv1.Bound || cell.Instance == nil:
	case !state.podRuns && now.Sub(cell.StepTime(apiv1.StepBound)) < boostLimit:
	case state.ending || now.Before(state.after):
	default:
		state.ending, state.after = true, now.Add(boostRetry)
		s.due.add(e)
	}
}

// end ends the boosts of cells, and stores that. What fails is tried again: the record of a cell says
// nothing of an end until the cloud has ended it.
func (s *boosting) end(ctx context.Context, entries []*entry) {
	for group := range slices.Chunk(entries, boostMost) {
		ended := slices.DeleteFunc(s.endBoosts(ctx, group), func(e *entry) bool { return e.cell().Phase == apiv1.Gone })
		if len(ended) > 0 {
			err := s.records.commit(ctx, ended, func(_ int, cell *Cell) error {
				cell.BoostEnded = true
				return nil
			})
			switch {
			case refusedWrite(err):
				s.loop.fail(err)
			case err != nil && ctx.Err() == nil:
				s.loop.log.Warn("store that cells are not boosted, retrying", "cells", len(ended), "err", err)
			}
		}
		s.mu.Lock()
		for _, e := range group {
			s.boosts.of(e).ending = false
		}
		s.mu.Unlock()
	}
}

// endBoosts returns those of a group whose boost the cloud has ended.
func (s *boosting) endBoosts(ctx context.Context, group []*entry) (ended []*entry) {
	booster, ids := s.calls.Optional().Booster, make([]string, len(group))
	for n, e := range group {
		ids[n] = e.cell().Instance.ID
	}
	if booster == nil {
		return nil // the cloud is another than it was
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	results := booster.EndBoost(call, ids...)
	cancel()
	for n, r := range results {
		if r.Err == nil {
			ended = append(ended, group[n])
		}
	}
	if err := results.Err(); err != nil && ctx.Err() == nil {
		s.loop.log.Warn("end the boost of cells, retrying", "cells", len(ids)-len(ended), "err", err)
	}
	return ended
}
