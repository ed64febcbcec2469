package cells

import (
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// evaluating finds out what the cloud's answers mean for the cells of a launch, and when to send it again.
type evaluating struct {
	loop    *loop
	answers *launchAnswers
	events  *reporter
}

// begin returns the tries of a launch before the first.
func (s *evaluating) begin(l *launch) *launchTries { return s.answers.begin(l) }

// evaluate returns the outcomes that are known by the answers to a try. Other launches learn from them.
func (s *evaluating) evaluate(t *launchTries, results cloud.LaunchResults) []*outcome {
	known := s.answers.read(t, results)
	s.answers.learn(t, known)
	return known
}

// delay returns after how long to send a launch again, for the cells that are open. It reports the first delay to the owners of their pods.
func (s *evaluating) delay(t *launchTries) time.Duration {
	l, left := t.of, t.of.open()
	if t.tries == 1 {
		for _, e := range left {
			s.events.report(e.cell(), events.NewLaunchDelayed(t.offering.String(), t.failed))
		}
	}
	s.loop.log.Warn("launch cells, retrying", "offering", t.offering.String(), "cells", len(left), "try", t.tries, "err", t.failed)
	again := max(s.loop.random.After(t.tries, firstRetry, longestRetry), retryAfter(t.failed))
	if !l.until.IsZero() {
		again = min(again, max(0, l.until.Sub(s.loop.clock.Now())))
	}
	return again
}
