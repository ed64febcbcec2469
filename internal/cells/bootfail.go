package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/events"
)

// bootFailures ends cells that do not become ready.
type bootFailures struct {
	table     *table
	bootTimes *bootTimes
	blockers  *blockers
	consoles  *consoles
	ends      *cellEnds
	upgrades  *upgrades
}

// endUnwanted ends a booting cell that nobody wants, or that is lost.
func (s *bootFailures) endUnwanted(ctx context.Context, e *entry) (ended bool, err error) {
	why, cause := s.table.ending(e)
	if why == "" {
		return false, nil
	}
	if err := s.ends.startTerminating(ctx, e, cellEnd{cause: cause, evidence: why}); err != nil {
		return false, err
	}
	if cause == CauseLost || cause == CauseInterrupted {
		s.consoles.report(ctx, e.cell())
	}
	return true, nil
}

// endIfLate ends a booting cell whose time is over, and which waits for what its stages say. It returns how much time the cell has left.
func (s *bootFailures) endIfLate(ctx context.Context, e *entry, stages waiter) (time.Duration, error) {
	left, what := s.bootTimes.left(e, e.cell(), e.session())
	if left = e.spared(left); left > 0 {
		return left, nil
	}
	s.table.mu.Lock()
	waitsFor, noAgent := stages.waitsForLocked(e), !s.upgrades.sinceLocked(e).IsZero()
	s.table.mu.Unlock()
	why := fmt.Sprintf("cell %s on %s did not %s in time: %s", e.id, e.cell().Instance.ID, what, waitsFor)
	end := cellEnd{CauseNotReady, why, events.NewCellNotReady(e.id, e.cell().Instance.ID, what, waitsFor)}
	if noAgent {
		end.cause = CauseUnfit
		s.blockers.noteAgentMissing(e.cell(), errors.New(why))
	}
	if err := s.ends.startTerminating(ctx, e, end); err != nil {
		return 0, err
	}
	s.consoles.report(ctx, e.cell())
	return 0, nil
}

// endWithoutAgent ends a cell that cannot have the agent that it was launched for.
func (s *bootFailures) endWithoutAgent(ctx context.Context, e *entry, err error) error {
	why := fmt.Sprintf("cell %s on %s: %v", e.id, e.cell().Instance.ID, err)
	s.blockers.noteAgentMissing(e.cell(), err)
	return s.ends.startTerminating(ctx, e, cellEnd{CauseUnfit, why, events.NewAgentNotStarted(e.id, e.cell().Instance.ID, err.Error())})
}

// endWithoutCloudInit ends a cell that cannot carry out its cloud-init file. For a while no other is launched like it.
func (s *bootFailures) endWithoutCloudInit(ctx context.Context, e *entry, err error) error {
	why := fmt.Sprintf("cell %s on %s: %v", e.id, e.cell().Instance.ID, err)
	s.blockers.noteCloudInitRefused(e.cell(), err)
	return s.ends.startTerminating(ctx, e, cellEnd{CauseUnfit, why, events.NewCloudInitNotDone(e.id, e.cell().Instance.ID, err)})
}

// endTooSmall ends a cell whose machine is too small for its pod.
func (s *bootFailures) endTooSmall(ctx context.Context, e *entry, why string) error {
	return s.ends.startTerminating(ctx, e, cellEnd{CauseTooSmall, why, events.NewCellTooSmall(e.id, why)})
}
