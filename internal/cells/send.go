package cells

import (
	"context"
	"errors"
	"fmt"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"k8s.io/utils/clock"
)

// sending sends stored launches to the cloud.
type sending struct {
	clock clock.PassiveClock
	calls *pipe.Pipe
}

// errExpired: the machines of the launch share a secret that is too old to join with.
var errExpired = errors.New("the secret of the launch has expired")

// send sends a launch once, in a turn, or waits for one, and returns the answers. It is not sent any more when
// the secret that its machines share has expired.
func (s *sending) send(ctx context.Context, l *launch, turn *pipe.Turn) cloud.LaunchResults {
	expired := cloud.NotLaunched(len(l.group), errExpired)
	if turn == nil {
		wait, cancel := ctx, func() {}
		if !l.until.IsZero() {
			wait, cancel = context.WithTimeout(ctx, l.until.Sub(s.clock.Now()))
		}
		var err error
		turn, err = s.calls.Turn(wait, cloud.CallLaunch, len(l.group))
		cancel()
		if err != nil {
			return expired // or ctx has ended, and nobody reads this
		}
		turn.Resources(len(l.group))
	}
	if !l.until.IsZero() && !s.clock.Now().Before(l.until) {
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
