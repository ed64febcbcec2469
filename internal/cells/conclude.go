package cells

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// concluding finds out what the cloud's answers mean for the cells of launches, and has that stored.
type concluding struct {
	loop       *loop
	answers    *launchAnswers
	unresolved *unresolved
	outcomes   *outcomes
	events     *reporter
}

// conclusion is what has come of a try to launch.
type conclusion struct {
	over  []*entry      // the cells whose launch is over, or is to begin anew
	again time.Duration // after how long to send the launch again, where the outcomes of others are not known
	err   error         // for which nothing can go on
}

// begin returns the tries of a launch before the first. sent says that an earlier Kip may have made a call.
func (s *concluding) begin(l *launch, sent bool) *launchTries { return s.answers.begin(l, sent) }

// conclude takes the answers to a try.
func (s *concluding) conclude(ctx context.Context, t *launchTries, results cloud.LaunchResults) (got conclusion) {
	l := t.of
	verdicts, failed := s.answers.read(t, results)
	known := slices.Sorted(maps.Keys(verdicts))
	s.outcomes.reportShortages(t.offering, l, known, verdicts, results)
	s.answers.learn(t, verdicts, failed)
	got.over, got.err = s.outcomes.store(ctx, l, known, verdicts, results)
	left := l.open()
	if got.err != nil || len(left) == 0 {
		return got
	}
	if t.tries == 1 {
		for _, e := range l.entries(left) {
			s.events.report(e.cell(), events.NewLaunchDelayed(t.offering.String(), failed))
		}
	}
	s.loop.log.Warn("launch cells, retrying", "offering", t.offering.String(), "cells", len(left), "try", t.tries, "err", failed)
	got.again = max(s.loop.random.After(t.tries, firstRetry, longestRetry), retryAfter(failed))
	if !l.until.IsZero() {
		got.again = min(got.again, max(0, l.until.Sub(s.loop.clock.Now())))
	}
	return got
}

// concludeUnresolved takes the error of a group that the cloud could not resolve.
func (s *concluding) concludeUnresolved(ctx context.Context, group []*entry, failure error) conclusion {
	waiting, refused, as := s.unresolved.judge(group, failure)
	l, results := &launch{group: refused, unstored: true}, cloud.NotLaunched(len(refused), failure)
	s.outcomes.reportShortages(group[0].cell().Offering(), l, l.open(), l.all(as), results)
	over, err := s.outcomes.store(ctx, l, l.open(), l.all(as), results)
	return conclusion{over: append(over, waiting...), err: err}
}

// abandon gives up a launch that cannot be sent again, for those of its cells that are open.
func (s *concluding) abandon(ctx context.Context, l *launch, why error) conclusion {
	over, err := s.outcomes.store(ctx, l, l.open(), l.all(isAbandoned), cloud.NotLaunched(len(l.group), why))
	return conclusion{over: over, err: err}
}

// all returns the same verdict for all places whose outcome is not known.
func (l *launch) all(as verdict) map[int]verdict {
	verdicts := map[int]verdict{}
	for _, n := range l.open() {
		verdicts[n] = as
	}
	return verdicts
}
