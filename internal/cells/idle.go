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
	"k8s.io/apimachinery/pkg/types"
)

// idling is what standby cells do until they are taken: they wait, or are stopped. It starts those again that are taken.
type idling struct {
	loop        *loop
	records     *records
	calls       *pipe.Pipe
	pools       *pools
	inventory   *inventory
	connections *connections
	rights      *rights
	ends        *ends
	events      *reporter
	shortages   Shortages
}

// idleState are the tries to start and to stop an instance; of the cell's worker.
type idleState struct{ starting, stopping attempts }

// idle is what a standby cell does until it is taken.
func (s *idling) idle(ctx context.Context, e *entry) (time.Duration, error) {
	if s.stops(e.cell()) {
		return s.stop(ctx, e)
	}
	if !e.session.Connected() {
		s.inventory.pollSoon() // is the machine still there?
		return silentPoll, nil
	}
	return 0, nil
}

// stops says that an idle standby cell is to be stopped.
func (s *idling) stops(cell *Cell) bool {
	return s.calls.Features().Stopper != nil && s.pools.stops(cell.Standby) && cell.Pod.UID == ""
}

// stop begins to stop the instance of an idle standby cell.
func (s *idling) stop(ctx context.Context, e *entry) (time.Duration, error) {
	now := s.loop.clock.Now()
	if err := s.records.save(ctx, e, func(cell *Cell) error {
		if cell.Pod.UID != types.UID("") {
			return fmt.Errorf("standby cell %s was taken", cell.ID)
		}
		cell.BilledSeconds = cell.cost(now).Seconds
		cell.Stopped = true
		return nil
	}); err != nil {
		return 0, err
	}
	return s.stopOrStart(ctx, e)
}

// takeBackAgain is after how long a stop is taken back again that was under way.
const takeBackAgain = time.Second

// stopOrStart moves a stopped cell's instance to where it should be: stopped, or
// running again for the pod that took it.
func (s *idling) stopOrStart(ctx context.Context, e *entry) (time.Duration, error) {
	machines, id := s.calls.Features().Stopper, e.cell().Instance.ID
	if machines == nil {
		return 0, fmt.Errorf("cell %s is stopped, and cloud %s cannot start it", e.id, s.calls.Name())
	}
	s.connections.disconnect(e)
	seen, now := s.inventory.last(), s.loop.clock.Now()
	if e.cell().Pod.UID == "" {
		if i, there := seen.byID[id]; there && i.State == cloud.Stopped {
			if e.cell().Instance.State != cloud.Stopped {
				return 0, s.records.save(ctx, e, func(cell *Cell) error { cell.Instance.State = cloud.Stopped; return nil })
			}
			return 0, nil
		}
		s.inventory.pollSoon()
		if e.idle.stopping.wait(now) > 0 {
			return time.Second, nil
		}
		err := s.loop.async(ctx, e, "stop", func(ctx context.Context) error { return machines.Stop(ctx, id).Err() })
		if errors.Is(err, errUnderWay) {
			return time.Second, err
		}
		return time.Second, s.noteStopAnswer(e, err)
	}
	if !e.async.has(startsInstance) {
		s.calls.TakeBackStop(id) // the pod would wait until that is sent
		if wait := e.idle.starting.wait(now); wait > 0 {
			return wait, nil
		}
		if wait := s.rights.probeOrDelayStart(e); wait > 0 {
			return wait, nil
		}
	}
	err := s.loop.async(ctx, e, startsInstance, func(ctx context.Context) error { return machines.Start(ctx, id).Err() })
	if errors.Is(err, errUnderWay) && !e.async.has(startsInstance) {
		s.rights.giveProbeBack(e)
		return takeBackAgain, err // the stop that is under way may be put off, to be sent again
	}
	if errors.Is(err, errUnderWay) || ctx.Err() != nil {
		return 0, err
	}
	if err != nil {
		return s.noteStartRefusal(e, err), nil
	}
	s.rights.noteAnswer(keyOf(e.cell().Offering()), cloud.LaunchResults{{}})
	return 0, s.records.save(ctx, e, func(cell *Cell) error {
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

// stopAgain is how long an instance may still run after the cloud has accepted its
// stop.
const stopAgain = time.Minute

// noteStopAnswer notes the answer to a call that stops an instance. The error is one for
// which nothing can go on.
func (s *idling) noteStopAnswer(e *entry, err error) error {
	now := s.loop.clock.Now()
	switch {
	case err == nil:
		e.idle.stopping = attempts{next: now.Add(stopAgain)}
	case refusedWrite(err):
		return err
	default:
		e.idle.stopping.fail(now, err, s.loop.random)
		s.loop.log.Warn("stop a standby cell, retrying", "cell", e.id, "try", e.idle.stopping.failed, "err", err)
	}
	return nil
}

// noteStartRefusal notes a refusal to start the stopped instance of a cell that a pod has
// taken, and returns after how long to try again. After some tries the cell is given
// up: another may be launched.
func (s *idling) noteStartRefusal(e *entry, err error) time.Duration {
	now := s.loop.clock.Now()
	if errors.Is(err, cloud.ErrUnauthorised) && cloud.ScopeOf(err).Account { // nor is anything launched
		s.rights.noteAnswer(keyOf(e.cell().Offering()), cloud.LaunchResults{{Err: err}})
		return max(s.rights.delayLaunch(e), firstRetry)
	}
	e.idle.starting.fail(now, err, s.loop.random)
	if lacks(err) {
		s.shortages.Mark(e.cell().Offering(), err)
	}
	giveUp := errors.Is(err, cloud.ErrCapacity) || now.Sub(e.idle.starting.began) >= giveUpAfter
	if e.idle.starting.failed >= giveUpTries && giveUp && !errors.Is(err, cloud.ErrThrottled) {
		s.ends.begin(e, CauseLost, fmt.Sprintf("its instance could not be started: %v", err))
		return 0
	}
	if e.idle.starting.failed == 1 {
		s.events.report(e.cell(), events.NewStandbyCellNotStarted(e.id, err))
	}
	return e.idle.starting.wait(now)
}
