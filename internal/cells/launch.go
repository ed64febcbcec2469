package cells

import (
	"context"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// launch is a stored call that is under way.
type launch struct {
	id       string
	request  cloud.LaunchRequest
	until    time.Time // as in its record
	revision int64     // of its record; 0 where there is none
	// group are the cells by their place in the request; nil where the outcome is
	// known already.
	group []*entry
	// unstored says that there is no record of it, and that its cells are Requested still.
	unstored bool
}

// open returns the places whose outcome is not known.
func (l *launch) open() (places []int) {
	for n, e := range l.group {
		if e != nil {
			places = append(places, n)
		}
	}
	return places
}

func (l *launch) entries(places []int) []*entry {
	all := make([]*entry, len(places))
	for i, n := range places {
		all[i] = l.group[n]
	}
	return all
}

// launching launches the cells that wait for it, in groups.
type launching struct {
	loop      *loop
	calls     *pipe.Pipe
	queue     *launchQueue
	sizes     *batchSizes
	wanted    *wanted
	resolving *resolving
}

// run launches what waits until ctx ends.
func (s *launching) run(ctx context.Context) {
	for s.queue.wait(ctx) {
		s.loop.watchdog.Track(ctx, "launches", s.launchNext)
	}
}

// launchNext takes cells of the same offering, to launch them in one call. The call's turn is
// waited for before the call is stored: until then others may come along.
func (s *launching) launchNext(ctx context.Context) {
	turn, err := s.calls.Turn(ctx, cloud.CallLaunch, 1)
	if err != nil {
		return // ctx has ended
	}
	if !s.queue.full(s.sizes.atMost()) && !turn.Gather(ctx) {
		turn.Cancel()
		return
	}
	group := s.queue.next(s.sizes.atMost(), func(n int) int { return max(1, turn.Resources(n)) })
	if group = s.wanted.giveBackEnding(group); len(group) == 0 {
		turn.Cancel()
		return
	}
	s.resolving.launch(ctx, group, turn)
}

// wanted takes the cells out of groups that nobody wants any more.
type wanted struct {
	table *table
	loop  *loop
}

// giveBackEnding gives the cells of a group that are to end back to their workers, and returns the others.
func (s *wanted) giveBackEnding(group []*entry) []*entry {
	return slices.DeleteFunc(group, func(e *entry) bool {
		why, _ := s.table.endingOf(e)
		if why != "" {
			s.loop.landed(e)
		}
		return why != ""
	})
}
