package cells

import (
	"context"
	"errors"

	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
)

// terminateCalls sends the calls that terminate instances: those of cells, and those without one.
type terminateCalls struct {
	loop         *loop
	calls        *pipe.Pipe
	guard        *guard.Guard
	holds        *holds
	terminations *terminations
	answers      *terminateAnswers
}

// run terminates instances until ctx ends.
func (s *terminateCalls) run(ctx context.Context) {
	s.terminations.queued.run(ctx, func(all []*termination) {
		s.loop.watchdog.Track(ctx, "terminations", func(ctx context.Context) { s.callAll(ctx, all) })
	})
}

// callAll terminates what has come together, each in its own time: what waits for its
// call meanwhile goes in one, and is answered by instance.
func (s *terminateCalls) callAll(ctx context.Context, all []*termination) {
	population := s.holds.population()
	for _, t := range all {
		s.loop.spawn(ctx, "terminations", func(ctx context.Context) {
			err := s.guard.Admit(ctx, t.end, population)
			if err == nil {
				err = s.calls.Terminate(ctx, t.end.Instance).Err()
			}
			if ctx.Err() != nil {
				return
			}
			s.answers.note(ctx, t, err)
		})
	}
}

// terminateAnswers takes the answers of the cloud, or of the guard, to these calls.
type terminateAnswers struct {
	loop         *loop
	terminations *terminations
	inventory    *inventory
	routes       *routes
	events       *reporter
	observers    *observers
}

// note notes the answer about one instance. What led to one without a cell goes with it.
func (s *terminateAnswers) note(ctx context.Context, t *termination, err error) {
	defer s.inventory.pollSoon()
	if err == nil && t.cell == nil {
		err = s.routes.unrouteOrphan(ctx, t.end.Instance)
	}
	held, isHeld := errors.AsType[*guard.HeldError](err)
	if err == nil {
		s.inventory.askAnew(t.end.Instance) // before it is noted that lists may lack it
	}
	isNews := s.terminations.note(t, err)
	if refusedWrite(err) {
		s.loop.fail(err) // another leads
		return
	}
	switch {
	case err == nil:
	case isHeld && isNews:
		s.events.reportHeld(t.end, held)
	case isNews:
		s.events.reportEnd(t.end, events.NewCellNotTerminated(t.end.Instance, err))
	}
	if t.cell == nil {
		if !isHeld {
			s.observers.OrphanEnded(err)
		}
		return
	}
	s.loop.queue.Add(t.cell.id)
}
