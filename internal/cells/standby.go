package cells

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"k8s.io/apimachinery/pkg/types"
)

// fits says that a standby cell is as good for the request as a new one.
func (c *Controller) fits(r Request, cell *Cell) bool {
	best, has := r.Offers[0], cell.Offer()
	if c.lacks(cell.Room, r.Needs) {
		return false
	}
	if r.Special || has.InstanceType != best.InstanceType || has.Market() != best.Market() || has.DiskBytes != best.DiskBytes {
		return false
	}
	return slices.ContainsFunc(r.Offers, func(o Offer) bool { return o.offering() == has.offering() })
}

// WouldTake returns the standby cell that a request would be given now.
func (c *Controller) WouldTake(r Request) (Cell, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, _ := c.standbyFor(r)
	if e == nil {
		return Cell{}, false
	}
	return *e.cell(), true
}

// standbyFor returns the standby cell that fits a request best: one that is ready,
// else the one that will be soonest; nil where there is none. connecting says that a better
// one may be connected in a moment. The caller holds mu.
func (c *Controller) standbyFor(r Request) (best *entry, connecting bool) {
	if c.pools.none() {
		return nil, false
	}
	template := c.template(c.cloudInit())
	rank := func(cell *Cell) int {
		switch {
		case cell.Phase == apiv1.Ready && !cell.Stopped && c.nodeOf(cell) == r.Node:
			return 3
		case cell.Phase == apiv1.Ready && !cell.Stopped:
			return 2 // its kubelet has to be started again
		case cell.Phase == apiv1.Ready && cell.Instance.State == cloud.Stopped:
			return 1 // one that is stopping yet cannot be started
		}
		return 0 // the pod would wait for a boot that may fail
	}
	for _, e := range c.standby {
		cell := e.cell()
		if e.ending != "" || !cell.Interrupted.IsZero() || !e.goesOver.IsZero() || rank(cell) == 0 || !c.fits(r, cell) {
			continue
		}
		if rank(cell) >= 2 && (e.session == nil || !e.session.Connected()) {
			connecting = connecting || c.connecting(e)
			continue // it may be lost
		}
		if best == nil || rank(cell) > rank(best.cell()) || cell.Template == template && best.cell().Template != template {
			best = e
		}
	}
	return best, connecting && (best == nil || rank(best.cell()) < 2)
}

// firstConnect is how long Kip waits for standby cells after it has begun: a connection
// takes tens of milliseconds, a new cell a boot.
const firstConnect = 3 * time.Second

// connecting says that Kip connects to a cell for the first time, and that nothing has gone
// wrong yet. One whose store is behind connects to none that it may give. The caller holds mu.
func (c *Controller) connecting(e *entry) bool {
	beginning := c.awake.IsZero() || c.cfg.Clock.Since(c.awake) < firstConnect
	return beginning && !c.isBehind() && (e.session == nil || e.session.LastError() == nil)
}

// takeStandby promises a standby cell that fits to a pod; nil where there is none. Its only
// error is ErrConnecting. The caller holds mu.
func (c *Controller) takeStandby(r Request) (*entry, error) {
	best, connecting := c.standbyFor(r)
	switch {
	case connecting:
		return nil, ErrConnecting
	case best == nil:
		return nil, nil
	}
	delete(c.standby, best.id)
	best.pod, best.disks, best.arrived = r.Pod, r.Disks, r.Arrived
	c.reserve(best)
	c.pools.taken(best.cell().Standby)
	return best, nil
}

// give stores that a standby cell is a pod's.
func (c *Controller) give(ctx context.Context, e *entry, r Request) (Cell, error) {
	c.refillSoon()
	err := c.save(ctx, e, func(cell *Cell) error {
		if cell.Phase != apiv1.Ready {
			return fmt.Errorf("standby cell %s is %s", cell.ID, cell.Phase)
		}
		cell.Pod, cell.Attempt, cell.HealthyTimeout, cell.Disks, cell.Plugins = r.Pod, r.Attempt, r.HealthyTimeout, r.Disks, r.Plugins
		cell.Node, cell.Best, cell.RuledOut = r.Node, r.best(), r.RuledOut
		cell.PodCreated, cell.Account, cell.Needs, cell.GPUs = r.Created, r.Account, r.Needs, r.GPUs
		cell.Accelerators = r.Accelerators
		cell.Reason = "a standby cell of " + cell.Standby + ": " + r.Offers[0].Reason
		cell.step(apiv1.StepSeen, r.Seen)
		cell.step(apiv1.StepGiven, c.cfg.Clock.Now())
		return nil
	})
	if err != nil {
		// Whatever is stored, the cell ends. Where that is not known, it is the
		// pod's until it is gone.
		lockWriting(ctx, e)
		c.mu.Lock()
		if e.unsure == nil {
			c.unreserve(e)
			e.pod = apiv1.PodReference{}
		}
		if e.ending == "" {
			e.ending = "it could not be given to pod " + r.Pod.String()
		}
		c.mu.Unlock()
		e.writing.Unlock()
		if refusedWrite(err) {
			c.fail(err)
		}
		c.queue.Add(e.id)
		return Cell{}, fmt.Errorf("give standby cell %s to pod %s: %w", e.id, r.Pod, err)
	}
	c.tagGiven(e)
	c.queue.Add(e.id)
	return *e.cell(), nil
}

// idle is what a standby cell does until it is taken.
func (c *Controller) idle(ctx context.Context, e *entry) (time.Duration, error) {
	if c.stops(e.cell()) {
		return c.stop(ctx, e)
	}
	if !e.session.Connected() {
		c.pollSoon() // is the machine still there?
		return silentPoll, nil
	}
	return 0, nil
}

// refillSoon asks for a look at the pools.
func (c *Controller) refillSoon() {
	select {
	case c.refill <- struct{}{}:
	default:
	}
}

// fillPools keeps the standby pools full until ctx ends.
func (c *Controller) fillPools(ctx context.Context) {
	for {
		c.cfg.Pulse.Turn(ctx, "standby pools", c.fill)
		timer := c.cfg.Clock.NewTimer(c.pools.next())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-c.refill:
			timer.Stop()
		}
	}
}

// fill makes what the pools lack and ends what they have too many of. It is the
// only place that does, so that no burst makes more than are wanted.
func (c *Controller) fill(ctx context.Context) {
	if c.isBehind() {
		return
	}
	c.mu.Lock()
	surplus, lacking := c.pools.plan(c.standbyNow())
	for _, id := range surplus {
		e := c.standby[id]
		e.ending, e.cause = "its standby pool does not want it any more", CauseStandbyRetired
		c.queue.Add(e.id)
	}
	c.mu.Unlock()
	for name, n := range lacking {
		c.makeStandby(ctx, name, n)
	}
}

// makeStandby requests n cells for a pool.
func (c *Controller) makeStandby(ctx context.Context, name string, n int) {
	offers, err := c.pools.offers(name)
	if errors.Is(err, errLater) {
		return
	}
	for range n {
		if err != nil || ctx.Err() != nil {
			break
		}
		cell := Cell{
			ID:       newID("cell-"),
			Phase:    apiv1.Requested,
			Standby:  name,
			Template: c.template(c.cloudInit()),
			Offers:   offers,
			Options:  c.cfg.Options,
			Reason:   "standby pool " + name,
		}
		cell.step(apiv1.StepPlaced, c.cfg.Clock.Now())
		e := newEntry(cell, 0)
		c.mu.Lock()
		c.reserve(e)
		c.mu.Unlock()
		err = c.store(ctx, e)
	}
	if c.pools.filled(name, err) && err != nil {
		c.cfg.Log.Warn("a standby pool cannot be filled", "standby", name, "err", err)
	}
}

// EmptyPools ends the standby cells and makes no others, until the process ends.
func (c *Controller) EmptyPools() {
	c.pools.empty()
	c.refillSoon()
}

// Standby returns the pools' states, in order of name.
func (c *Controller) Standby() []StandbyState { return c.pools.states(c.standbyCells()) }

// standbyCells are those that no pod has, and that are not to end.
func (c *Controller) standbyCells() (list []*Cell) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.standbyNow()
}

// standbyNow is standbyCells under mu.
func (c *Controller) standbyNow() (list []*Cell) {
	for _, e := range c.standby {
		if cell := e.cell(); e.ending == "" && cell.Live() {
			list = append(list, cell)
		}
	}
	return list
}

// stops says that an idle standby cell is to be stopped.
func (c *Controller) stops(cell *Cell) bool {
	return c.cfg.Calls.Features().Stopper != nil && c.pools.stops(cell.Standby) && cell.Pod.UID == ""
}

// stop begins to stop the instance of an idle standby cell.
func (c *Controller) stop(ctx context.Context, e *entry) (time.Duration, error) {
	now := c.cfg.Clock.Now()
	if err := c.save(ctx, e, func(cell *Cell) error {
		if cell.Pod.UID != types.UID("") {
			return fmt.Errorf("standby cell %s was taken", cell.ID)
		}
		cell.BilledSeconds = cell.cost(now).Seconds
		cell.Stopped = true
		return nil
	}); err != nil {
		return 0, err
	}
	return c.stopOrStart(ctx, e)
}

// takeBackAgain is after how long a stop is taken back again that was under way.
const takeBackAgain = time.Second

// stopOrStart moves a stopped cell's instance to where it should be: stopped, or
// running again for the pod that took it.
func (c *Controller) stopOrStart(ctx context.Context, e *entry) (time.Duration, error) {
	machines, id := c.cfg.Calls.Features().Stopper, e.cell().Instance.ID
	if machines == nil {
		return 0, fmt.Errorf("cell %s is stopped, and cloud %s cannot start it", e.id, c.cfg.Calls.Name())
	}
	c.disconnect(e)
	look, now := c.inventory.last(), c.cfg.Clock.Now()
	if e.cell().Pod.UID == "" {
		if i, there := look.byID[id]; there && i.State == cloud.Stopped {
			if e.cell().Instance.State != cloud.Stopped {
				return 0, c.save(ctx, e, func(cell *Cell) error { cell.Instance.State = cloud.Stopped; return nil })
			}
			return 0, nil
		}
		c.pollSoon()
		if e.stopping.wait(now) > 0 {
			return time.Second, nil
		}
		err := c.aside(ctx, e, "stop", func(ctx context.Context) error { return machines.Stop(ctx, id).Err() })
		if errors.Is(err, errUnderWay) {
			return time.Second, err
		}
		return time.Second, c.stopped(e, err)
	}
	if !c.isAside(e, startsInstance) {
		c.cfg.Calls.TakeBackStop(id) // the pod would wait until that is sent
		if wait := e.starting.wait(now); wait > 0 {
			return wait, nil
		}
		if wait := c.startsPaused(e); wait > 0 {
			return wait, nil
		}
	}
	err := c.aside(ctx, e, startsInstance, func(ctx context.Context) error { return machines.Start(ctx, id).Err() })
	if errors.Is(err, errUnderWay) && !c.isAside(e, startsInstance) {
		c.giveTurnBack(e)
		return takeBackAgain, err // the stop that is under way may be put off, to be sent again
	}
	if errors.Is(err, errUnderWay) || ctx.Err() != nil {
		return 0, err
	}
	if err != nil {
		return c.notStarted(e, err), nil
	}
	c.heardOfRights(e.cell().Offer().offering(), cloud.LaunchResults{{}})
	return 0, c.save(ctx, e, func(cell *Cell) error {
		if !cell.Stopped { // an earlier write of this, whose answer was lost, was found meanwhile
			return errMoved
		}
		cell.Stopped = false
		cell.Instance.State, cell.Instance.Launched = cloud.Running, c.cfg.Clock.Now()
		cell.Instance.ManagementIP, cell.Instance.PodIP = netip.Addr{}, netip.Addr{} // they may have changed
		cell.Instance.ManagementIPv6, cell.Instance.PodIPv6, cell.Instance.PublicIP = netip.Addr{}, netip.Addr{}, netip.Addr{}
		return cell.enter(apiv1.Booting)
	})
}

// stopAgain is how long an instance may still run after the cloud has accepted its
// stop.
const stopAgain = time.Minute

// stopped takes the answer to a call that stops an instance. The error is one for
// which nothing can go on.
func (c *Controller) stopped(e *entry, err error) error {
	now := c.cfg.Clock.Now()
	switch {
	case err == nil:
		e.stopping = attempts{next: now.Add(stopAgain)}
	case refusedWrite(err):
		return err
	default:
		e.stopping.fail(now, err, c.cfg.Random)
		c.cfg.Log.Warn("stop a standby cell, retrying", "cell", e.id, "try", e.stopping.failed, "err", err)
	}
	return nil
}

// notStarted takes a refusal to start the stopped instance of a cell that a pod has
// taken, and returns after how long to try again. After some tries the cell is given
// up: another may be launched.
func (c *Controller) notStarted(e *entry, err error) time.Duration {
	now := c.cfg.Clock.Now()
	if errors.Is(err, cloud.ErrUnauthorised) && cloud.ScopeOf(err).Account { // nor is anything launched
		c.heardOfRights(e.cell().Offer().offering(), cloud.LaunchResults{{Err: err}})
		return max(c.launchesPaused(e), firstRetry)
	}
	e.starting.fail(now, err, c.cfg.Random)
	if lacks(err) {
		c.cfg.Shortages.Mark(e.cell().Offer(), err)
	}
	giveUp := errors.Is(err, cloud.ErrCapacity) || now.Sub(e.starting.began) >= giveUpAfter
	if e.starting.failed >= giveUpTries && giveUp && !errors.Is(err, cloud.ErrThrottled) {
		c.endFor(e, CauseLost, fmt.Sprintf("its instance could not be started: %v", err))
		return 0
	}
	if e.starting.failed == 1 {
		c.warn(e.cell(), events.LaunchDelayed, "Cell %s could not be started: %v; retrying", e.id, err)
	}
	return e.starting.wait(now)
}
