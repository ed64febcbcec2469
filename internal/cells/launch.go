package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// launching launches the cells that wait for it, in groups. It has each phase of a launch done in its order, and acts on what a
// phase returns: no phase knows of another.
type launching struct {
	loop       *loop
	batching   *batching   // takes a group from the queue
	resolving  *resolving  // has the cloud resolve what it is launched with
	intents    *intents    // stores the call
	sending    *sending    // sends it to the cloud
	concluding *concluding // reads the answers, and stores what became of the cells
}

// run launches what waits until ctx ends.
func (s *launching) run(ctx context.Context) {
	for s.batching.wait(ctx) {
		s.loop.watchdog.Track(ctx, "launches", s.launchNext)
	}
}

// launchNext launches the cells of the next call. It returns when that waits for the cloud, which holds up no other
// launch; until then cells may come that go along in the next call.
func (s *launching) launchNext(ctx context.Context) {
	group, turn := s.batching.next(ctx)
	if turn == nil {
		return // ctx has ended
	}
	s.loop.spawnUntil(ctx, "launch", func(ctx context.Context, aside func()) { s.launch(ctx, group, turn, aside) })
}

// launch launches a group of cells in the turn of its call. It calls aside before it waits for the cloud.
func (s *launching) launch(ctx context.Context, group []*entry, turn *pipe.Turn, aside func()) {
	defer turn.Cancel() // unless it is used
	if group = s.giveBackEnding(group); len(group) == 0 {
		return
	}
	var resolved *cloud.Resolved
	if s.resolving.asks() {
		aside()
		turn.Yield() // others launch meanwhile, also where the cloud takes one call at a time
		var err error
		resolved, err = s.resolving.resolve(ctx, group)
		if group = s.giveBackEnding(group); ctx.Err() != nil || len(group) == 0 { // pods may have gone meanwhile
			return
		}
		if err != nil {
			turn.Cancel()
			s.act(s.concluding.concludeUnresolved(ctx, group, err))
			return
		}
		if err := turn.Resume(ctx); err != nil {
			return // ctx has ended
		}
		if group = s.giveBackEnding(group); len(group) == 0 {
			return
		}
	}
	l, rest, err := s.intents.store(ctx, group, resolved)
	s.loop.giveBack(rest...) // they are launched in another call
	if err != nil {
		turn.Cancel()
		s.loop.launchAgain(group[:len(group)-len(rest)], err)
		return
	}
	aside()
	s.finish(ctx, l, turn)
}

// finish sends a stored launch until the outcome of each machine is known and stored. Whether an earlier call with it
// worked or not, the same token leads to the same instances; so cells that must end are launched all the same, to learn
// what there is to terminate. turn is the one of the first call; nil where an earlier Kip may have made a call, whose
// outcome is unknown.
func (s *launching) finish(ctx context.Context, l *launch, turn *pipe.Turn) {
	defer func() { s.loop.giveBack(l.entries(l.open())...) }()
	for tries := s.concluding.begin(l, turn == nil); ; turn = nil {
		results := s.sending.send(ctx, l, turn)
		if ctx.Err() != nil {
			return
		}
		got := s.concluding.conclude(ctx, tries, results)
		if !s.act(got) || len(l.open()) == 0 || !s.loop.sleep(ctx, got.again) {
			return
		}
	}
}

// resume goes on with a stored launch that nobody in this process sends. lost is why it cannot be sent; nil where it can.
func (s *launching) resume(ctx context.Context, l *launch, lost error) {
	s.loop.spawn(ctx, "launch", func(ctx context.Context) {
		if lost == nil {
			s.finish(ctx, l, nil)
			return
		}
		s.act(s.concluding.abandon(ctx, l, lost))
		s.loop.giveBack(l.entries(l.open())...)
	})
}

// giveBackEnding gives the cells of a group that are to end back to their workers, and returns the others.
func (s *launching) giveBackEnding(group []*entry) []*entry {
	wanted, ending := s.batching.part(group)
	s.loop.giveBack(ending...)
	return wanted
}

// act gives the cells whose launch is over back to their workers. It reports whether the launch may go on.
func (s *launching) act(c conclusion) bool {
	s.loop.giveBack(c.over...)
	if refusedWrite(c.err) {
		s.loop.fail(c.err)
	}
	return c.err == nil
}

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
