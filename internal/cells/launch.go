package cells

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/store"
)

// launching launches the cells that wait for it, in groups. It runs the phases of a launch in their order, and settles what each of them
// returns: no phase knows of another, and none gives a cell back.
type launching struct {
	table      *table
	loop       *loop
	batching   *batching   // takes a group from the queue
	resolving  *resolving  // has the cloud resolve what it is launched with
	intents    *intents    // stores the call
	sending    *sending    // sends it to the cloud
	evaluating *evaluating // reads the answers
	recording  *recording  // stores what has become of the cells
}

// launch is a call that launches a group of cells, from when they are taken from the queue until the outcome of each is stored. It has all
// that is held for the call. A cell is its own until settle gives it back: until then the cell's worker does nothing for it.
type launch struct {
	// group are the cells; nil where one is settled. Once the call is stored their places are those in the call.
	group []*entry
	// turn is for the first call; nil once it is used, or where the launch was resumed.
	turn *pipe.Turn
	// resolved is what the cloud has resolved; nil where it resolves nothing.
	resolved *cloud.Resolved
	// sentBefore reports whether an earlier Kip may have made the call, of which the outcome is not known.
	sentBefore bool

	// The stored call. Until it is stored all of it is zero, and the cells are Requested.
	id       string
	request  cloud.LaunchRequest
	until    time.Time // as in its record
	revision int64     // of its record; 0 where there is none
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
	l, err := s.batching.next(ctx)
	if err != nil {
		return // ctx has ended
	}
	s.loop.spawnUntil(ctx, "launch", func(ctx context.Context, aside func()) { s.launch(ctx, l, aside) })
}

// launch launches a group of cells. It calls aside before it waits for the cloud.
func (s *launching) launch(ctx context.Context, l *launch, aside func()) {
	defer s.close(l)
	if !s.settle(ctx, l, s.batching.unwanted(l)) {
		return
	}
	if s.resolving.asks() {
		aside()
		if !s.resolve(ctx, l) {
			return
		}
	}
	if !s.settle(ctx, l, s.intents.store(ctx, l)) {
		return
	}
	aside()
	s.finish(ctx, l)
}

// resolve has the cloud resolve what a group is launched with, and reports whether the launch goes on. Meanwhile others launch, also where
// the cloud takes one call at a time, and pods may go.
func (s *launching) resolve(ctx context.Context, l *launch) bool {
	l.turn.Yield()
	failure := s.resolving.resolve(ctx, l)
	if !s.settle(ctx, l, s.batching.unwanted(l)) {
		return false
	}
	if failure != nil {
		return s.settle(ctx, l, s.resolving.outcomesOfFailure(l, failure))
	}
	return l.turn.Resume(ctx) == nil && s.settle(ctx, l, s.batching.unwanted(l))
}

// resume goes on with a stored launch that nobody in this process sends. lost is why it cannot be sent; nil where it can.
func (s *launching) resume(ctx context.Context, l *launch, lost error) {
	s.loop.spawn(ctx, "launch", func(ctx context.Context) {
		defer s.close(l)
		if lost == nil {
			s.finish(ctx, l)
			return
		}
		s.settle(ctx, l, outcomesOf(l.open(), isAbandoned, lost))
	})
}

// finish sends a stored launch until the outcome of each machine is known and stored. Whether an earlier call with it
// worked or not, the same token leads to the same instances; so cells that must end are launched all the same, to learn
// what there is to terminate.
func (s *launching) finish(ctx context.Context, l *launch) {
	for tries := s.evaluating.begin(l); ; {
		answers := s.sending.send(ctx, l)
		if ctx.Err() != nil {
			return
		}
		if !s.settle(ctx, l, s.evaluating.evaluate(tries, answers)) || !s.loop.sleep(ctx, s.evaluating.delay(tries)) {
			return
		}
	}
}

// settle ends a launch for some of its cells, and nobody else does: it stores what has become of them, and gives them back to their
// workers. It tries for as long as it takes, since nobody else knows the outcomes. Outcomes that are too many for one write are stored in
// parts, and the cells of each part are given back at once. It reports whether the launch goes on: not without cells, not when ctx has
// ended, and not if another Kip writes the records.
func (s *launching) settle(ctx context.Context, l *launch, some []*outcome) bool {
	if l.endsWith(some) {
		l.cancelTurn() // nothing is sent any more
	}
	most := len(some) // in one write
	for try := 1; len(some) > 0; {
		part := some[:min(most, len(some))]
		switch err := s.recording.record(ctx, l, part); {
		case err == nil:
			s.giveBack(l, part)
			some, try = some[len(part):], 1
		case refusedWrite(err):
			s.loop.fail(err)
			return false
		case errors.Is(err, store.ErrTooBig) && len(part) > 1:
			most = len(part) / 2
		case errors.Is(err, errGone): // the others are stored without that cell
		default:
			s.loop.log.Warn("store the outcome of a launch, retrying", "cell", part[0].e.id, "cells", len(part), "err", err)
			if !s.loop.sleep(ctx, s.loop.random.After(try, firstRetry, longestRetry)) {
				return false
			}
			try++
		}
	}
	return ctx.Err() == nil && len(l.open()) > 0
}

// close gives back what a launch has left when it goes on no more: its turn, and the cells whose outcomes are not stored, since Kip stops.
func (s *launching) close(l *launch) {
	l.cancelTurn()
	s.giveBack(l, outcomesOf(l.open(), isOpen, nil))
}

// giveBack gives cells of a launch back to their workers, which go on by what is stored of them.
func (s *launching) giveBack(l *launch, some []*outcome) {
	s.table.mu.Lock()
	for _, o := range some {
		o.e.giveBackLocked()
		if !effects[o.verdict].keepsLaunch {
			o.e.launchID = ""
		}
	}
	s.table.mu.Unlock()
	for _, o := range some {
		l.drop(o.e)
		if effects[o.verdict].fails {
			s.loop.retry(o.e, o.answer.Err)
		} else {
			s.loop.queue.Add(o.e.id)
		}
	}
}

// giveToLaunchLocked hands a cell from its worker to a launch: the worker does nothing for it until giveBackLocked. The
// caller holds table.mu, and has just queued the cell for launch or resumes its launch.
func (e *entry) giveToLaunchLocked() { e.launching = true }

// giveBackLocked makes a cell its worker's again. The caller holds table.mu.
func (e *entry) giveBackLocked() { e.launching = false }

// isStored reports whether the call is stored, or was.
func (l *launch) isStored() bool { return l.id != "" }

// open returns the cells that are not settled.
func (l *launch) open() []*entry {
	return slices.DeleteFunc(slices.Clone(l.group), func(e *entry) bool { return e == nil })
}

// endsWith reports whether no cell is open when some are settled.
func (l *launch) endsWith(some []*outcome) bool {
	for _, e := range l.open() {
		if !slices.ContainsFunc(some, func(o *outcome) bool { return o.e == e }) {
			return false
		}
	}
	return true
}

// drop notes that a cell is settled.
func (l *launch) drop(e *entry) {
	if n := slices.Index(l.group, e); n >= 0 { // one that was left over when the call was stored has no place
		l.group[n] = nil
	}
}

// takeTurn returns the turn of the first call, once; nil after that.
func (l *launch) takeTurn() *pipe.Turn {
	turn := l.turn
	l.turn = nil
	return turn
}

// cancelTurn ends the turn, if it is not used.
func (l *launch) cancelTurn() {
	if turn := l.takeTurn(); turn != nil {
		turn.Cancel()
	}
}
