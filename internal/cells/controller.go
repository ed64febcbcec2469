package cells

import (
	"context"
	"sync"

	apiv1 "github.com/elotl/kip/api/v1"
)

// workers is how many cells are moved along at the same time. A step waits for the
// store, hardly for the processor, and never for the cloud or an agent: what needs
// those is asynchronous.
const workers = 64

// Controller moves every cell through its life. One worker handles a cell at a
// time; while it is being launched, its launch does.
type Controller struct {
	ready     chan struct{}
	core      core
	shared    shared
	upkeep    upkeep
	links     links
	ends      endSteps
	machines  machines
	launches  launchSteps
	oversight oversight
}

// New returns a controller; Run starts it.
func New(cfg Config) *Controller {
	core := newCore(cfg)
	shared := newShared(cfg, core)
	upkeep := newUpkeep(cfg, core)
	links := newLinks(cfg, core, shared)
	ends := newEndSteps(cfg, core, shared, links)
	return &Controller{
		ready:     make(chan struct{}),
		core:      core,
		shared:    shared,
		upkeep:    upkeep,
		links:     links,
		ends:      ends,
		machines:  newMachines(cfg, core, shared, upkeep.consoles, links, ends),
		launches:  newLaunchSteps(cfg, core, shared, upkeep, ends),
		oversight: newOversight(cfg, core, shared, upkeep, links, ends),
	}
}

// Run moves cells until ctx ends, or until the store has failed for good. Cells
// go on running without it.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Before a worker takes a cell: for quietStart after this no pod is told that the first list has not come.
	c.shared.listening.restart(c.core.loop.clock.Now())
	for range workers {
		c.core.loop.running.Go(func() { c.core.loop.work(ctx, c.stepOf) })
	}
	for _, part := range []interface{ run(context.Context) }{
		c.upkeep.ingress, c.oversight.lister, c.upkeep.sweeping, c.oversight.health, c.launches.refilling, c.links.announcements,
		c.upkeep.trust, c.launches.launching, c.upkeep.tagging, c.upkeep.boosting, c.ends.terminateCalls,
	} {
		c.core.loop.running.Go(func() { part.run(ctx) })
	}
	for name, lock := range map[string]sync.Locker{
		"the lock of the cells":         &c.core.table.mu,
		"the lock of the inventory":     &c.core.inventory.mu,
		"the lock of the standby pools": &c.core.pools.mu,
	} {
		c.core.loop.running.Go(func() { c.core.loop.watchdog.TrackLock(ctx, name, lock) })
	}
	close(c.ready)

	var err error
	select {
	case <-ctx.Done():
	case err = <-c.core.loop.failed:
	}
	cancel()
	c.core.loop.queue.ShutDown()
	c.core.loop.running.Wait()
	for _, e := range c.core.table.all() {
		c.links.connections.disconnect(e)
	}
	return err
}

// Close lets go of what New began. It is for a controller that never ran as well, since
// nothing else ends its queue.
func (c *Controller) Close() { c.core.loop.queue.ShutDown() }

// step is one of a cell's life. Where it has moved the cell to another phase, the step of that follows, whatever its progress.
type step interface {
	Step(ctx context.Context, e *entry) (progress, error)
	waiter
}

// stepOf returns the step of a phase.
func (c *Controller) stepOf(p apiv1.Phase) step {
	switch p {
	case apiv1.Requested:
		return c.launches.enqueuing
	case apiv1.Launching:
		return c.launches.resuming // only of what an earlier Kip stored: launching sends what this one stores
	case apiv1.Booting:
		return c.machines.joining
	case apiv1.Ready:
		return c.machines.binding
	case apiv1.Bound:
		return c.machines.watching
	case apiv1.Draining:
		return c.ends.draining
	case apiv1.Terminating:
		return c.ends.terminating
	}
	return nil
}
