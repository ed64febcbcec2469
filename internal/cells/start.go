package cells

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
)

// starting starts the stopped instances of standby cells that pods have taken.
type starting struct {
	loop     *loop
	records  *records
	calls    *pipe.Pipe
	rights   *rights
	failures *startFailures
}

// notStarted is the wait of a cell whose instance could not be started.
const notStarted = "its instance could not be started, and Kip tries again"

// cancelStopAgain is after how long a stop that was under way is cancelled again.
const cancelStopAgain = time.Second

// start starts the instance of a cell, which then boots.
func (s *starting) start(ctx context.Context, e *entry, machines cloud.Stopper) (progress, error) {
	id := e.cell().Instance.ID
	if !e.async.has(startsInstance) {
		s.calls.TakeBackStop(id) // the pod would wait until that is sent
		if wait := s.failures.tries.of(e).wait(s.loop.clock.Now()); wait > 0 {
			return waitFor(notStarted, wait), nil
		}
		if got := s.rights.delayStart(e); !got.isDone() {
			return got, nil
		}
	}
	got, err := s.loop.async(ctx, e, startsInstance, func(ctx context.Context) error { return machines.Start(ctx, id).Err() })
	switch {
	case !got.isDone() && !e.async.has(startsInstance):
		return got.atMost(cancelStopAgain), nil // the stop that is under way may be put off, to be sent again
	case !got.isDone(), ctx.Err() != nil:
		return got, err
	case err != nil:
		return s.failures.noteStartRefusal(e, err), nil
	}
	s.rights.noteAnswer(e.cell().Offering().Key(), cloud.LaunchResults{{}})
	return done, s.records.save(ctx, e, func(cell *Cell) error {
		if !cell.Stopped { // an earlier write of this, whose answer was lost, was found meanwhile
			return errMoved
		}
		cell.Stopped = false
		cell.Instance.State, cell.Instance.Launched = cloud.Running, s.loop.clock.Now()
		cell.Instance.ManagementIP, cell.Instance.PodIP = netip.Addr{}, netip.Addr{} // they may have changed
		cell.Instance.ManagementIPv6, cell.Instance.PodIPv6, cell.Instance.PublicIP = netip.Addr{}, netip.Addr{}, netip.Addr{}
		return cell.enter(apiv1.Booting)
	})
}

// waitsForLocked returns what keeps the call from being sent that starts an instance. The caller holds table.mu.
func (s *starting) waitsForLocked(e *entry) string {
	if e.async.waitsFor() != startsInstance {
		return ""
	}
	return s.calls.Waits(cloud.CallStart)
}

// startFailures moves on cells whose instances could not be started.
type startFailures struct {
	loop      *loop
	rights    *rights
	ends      *cellEnds
	events    *reporter
	shortages Shortages
	tries     perCell[attempts] // to start instances; of their workers
}

// noteStartRefusal notes a refusal to start the stopped instance of a cell that a pod has
// taken, and returns for how long the cell waits until the next try. After some tries the cell is given
// up, and leaves: another may be launched.
func (s *startFailures) noteStartRefusal(e *entry, err error) progress {
	now := s.loop.clock.Now()
	if errors.Is(err, cloud.ErrUnauthorised) && cloud.ScopeOf(err).Account { // nor is anything launched
		s.rights.noteAnswer(e.cell().Offering().Key(), cloud.LaunchResults{{Err: err}})
		return waitFor(noRights+err.Error(), max(s.rights.delayStart(e).again, firstRetry))
	}
	tries := s.tries.of(e)
	tries.fail(now, err, s.loop.random)
	if isShortage(err) {
		s.shortages.Mark(e.cell().Offering(), err)
	}
	giveUp := errors.Is(err, cloud.ErrCapacity) || now.Sub(tries.began) >= giveUpAfter
	if tries.failed >= giveUpTries && giveUp && !errors.Is(err, cloud.ErrThrottled) {
		why := fmt.Sprintf("its instance could not be started: %v", err)
		s.ends.begin(e, cellEnd{CauseLost, why, events.NewCellLost(e.id, why)})
		return leave
	}
	if tries.failed == 1 {
		s.events.report(e.cell(), events.NewStandbyCellNotStarted(e.id, err))
	}
	return waitFor(notStarted, tries.wait(now))
}
