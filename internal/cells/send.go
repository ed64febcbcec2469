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

// send sends a stored launch once, and returns the answers. It is not sent any more when the secret that its machines
// share has expired. When ctx has ended the answers mean nothing.
func (s *sending) send(ctx context.Context, l *launch) cloud.LaunchResults {
	expired := cloud.NotLaunched(len(l.group), errExpired)
	turn, err := s.turnOf(ctx, l)
	if err != nil {
		return expired
	}
	defer turn.Cancel() // unless it is used
	if !l.until.IsZero() && !s.clock.Now().Before(l.until) {
		return expired
	}
	return checked(turn.Launch(ctx, l.request), l)
}

// turnOf returns the turn that a launch has, or waits for another, not longer than its secret may be used.
func (s *sending) turnOf(ctx context.Context, l *launch) (*pipe.Turn, error) {
	if turn := l.takeTurn(); turn != nil {
		return turn, nil
	}
	if !l.until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.until.Sub(s.clock.Now()))
		defer cancel()
	}
	turn, err := s.calls.Turn(ctx, cloud.CallLaunch, len(l.group))
	if err != nil {
		return nil, err
	}
	turn.Resources(len(l.group))
	return turn, nil
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
