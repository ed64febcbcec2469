package cells

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"k8s.io/utils/clock"
)

func TestThatSomethingIsNotThereSaysNothingOfRights(t *testing.T) {
	s := &rights{
		table:  newTable(),
		loop:   &loop{clock: clock.RealClock{}, log: slog.New(slog.DiscardHandler)},
		calls:  pipe.New(pipe.Config{Cloud: newModelCloud(), Clock: clock.RealClock{}}),
		denied: map[offeringKey]bool{},
	}
	no := func(cause cloud.Cause) cloud.LaunchResults {
		return cloud.NotLaunched(1, cloud.No(cause, cloud.Scope{Account: true}, errors.New("no")))
	}
	paused := func() bool { return !s.pause.since.IsZero() }
	s.noteAnswer(offeringKey{}, no(cloud.ErrUnauthorised))
	for _, cause := range []cloud.Cause{cloud.ErrStale, cloud.ErrNotYet, cloud.ErrThrottled} {
		if s.noteAnswer(offeringKey{}, no(cause)); !paused() {
			t.Fatalf("%q is taken for a right to launch", cause)
		}
	}
	if s.noteAnswer(offeringKey{}, no(cloud.ErrCapacity)); paused() {
		t.Error("that there is no capacity, which only those are told who may launch, does not end the pause")
	}
}
