package cells

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
)

// sending sends stored launches until their outcomes are known.
type sending struct {
	loop     *loop
	calls    *pipe.Pipe
	answers  *launchAnswers
	outcomes *outcomes
	events   *reporter
}

// errExpired: the machines of the launch share a secret that is too old to join with.
var errExpired = errors.New("the secret of the launch has expired")

// send sends a stored launch until the outcome of each machine is known and
// stored. Whether an earlier call with it worked or not, the same token leads to the
// same instances; so cells that must end are launched all the same, to learn what
// there is to terminate. turn is the one of the first call; nil where an earlier Kip
// may have made a call, whose outcome is unknown.
func (s *sending) send(ctx context.Context, l *launch, turn *pipe.Turn) {
	defer func() { s.loop.landed(l.entries(l.open())...) }()
	offering := l.group[l.open()[0]].cell().Offering()
	tries := s.answers.begin(l, turn == nil)
	for try := 1; ; try++ {
		results := s.call(ctx, l, turn)
		turn = nil
		if ctx.Err() != nil {
			return
		}
		verdicts, failed := s.answers.read(tries, results)
		known := slices.Sorted(maps.Keys(verdicts))
		s.outcomes.reportShortages(offering, l, known, verdicts, results)
		s.answers.learn(tries, verdicts, failed)
		if len(known) > 0 && !s.outcomes.store(ctx, l, known, verdicts, results) {
			return
		}
		left := l.open()
		if len(left) == 0 {
			return
		}
		if try == 1 {
			for _, e := range l.entries(left) {
				s.events.report(e.cell(), events.NewLaunchDelayed(offering.String(), failed))
			}
		}
		s.loop.log.Warn("launch cells, retrying", "offering", offering.String(), "cells", len(left), "try", try, "err", failed)
		pause := max(s.loop.random.After(try, firstRetry, longestRetry), retryAfter(failed))
		if !l.until.IsZero() {
			pause = min(pause, max(0, l.until.Sub(s.loop.clock.Now())))
		}
		if !s.loop.sleep(ctx, pause) {
			return
		}
	}
}

// call sends a launch once, in a turn, or waits for one. It is not sent any more when
// the secret that its machines share has expired.
func (s *sending) call(ctx context.Context, l *launch, turn *pipe.Turn) cloud.LaunchResults {
	expired := cloud.NotLaunched(len(l.group), errExpired)
	if turn == nil {
		wait, cancel := ctx, func() {}
		if !l.until.IsZero() {
			wait, cancel = context.WithTimeout(ctx, l.until.Sub(s.loop.clock.Now()))
		}
		var err error
		turn, err = s.calls.Turn(wait, cloud.CallLaunch, len(l.group))
		cancel()
		if err != nil {
			return expired // or ctx has ended, and nobody reads this
		}
		turn.Resources(len(l.group))
	}
	if !l.until.IsZero() && !s.loop.clock.Now().Before(l.until) {
		turn.Cancel()
		return expired
	}
	return checked(turn.Launch(ctx, l.request), l)
}

// checked has in each result without an error an instance, which is at its place where the machines
// share their user data: it joins as the cell of that place, and of no other.
func checked(results cloud.LaunchResults, l *launch) cloud.LaunchResults {
	for n, r := range results {
		switch {
		case r.Err != nil:
		case r.Instance.ID == "":
			results[n].Err = errors.New("the cloud answered with an instance without an ID")
		case l.request.Shared() && r.Instance.Place != cloud.PlaceOf(n):
			results[n].Err = fmt.Errorf("the cloud answered with instance %s at place %q: want place %d", r.Instance.ID, r.Instance.Place, n)
		}
	}
	return results
}
