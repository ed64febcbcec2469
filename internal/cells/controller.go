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
// time; while it is being launched, its group does.
type Controller struct {
	ready chan struct{}
	core
	shared
	upkeep
	links
	connecting
	outfit
	endSteps
	standbySteps
	machines
	launchSteps
	requestSteps
	oversight
	lists
}

// New returns a controller; Run starts it. Each group of parts is made of those before it.
func New(cfg Config) *Controller {
	core := newCore(cfg)
	shared := newShared(cfg, core)
	upkeep := newUpkeep(cfg, core, shared)
	links := newLinks(cfg, core, shared)
	connecting := newConnecting(cfg, core, shared, links)
	outfit := newOutfit(cfg, core, shared, connecting)
	endSteps := newEndSteps(cfg, core, shared, connecting, outfit)
	standbySteps := newStandbySteps(cfg, core, shared, connecting)
	machines := newMachines(cfg, core, shared, upkeep, links, connecting, outfit, endSteps, standbySteps)
	launchSteps := newLaunchSteps(cfg, core, shared, upkeep)
	requestSteps := newRequestSteps(cfg, core, shared, upkeep, endSteps)
	oversight := newOversight(cfg, core, shared, links, endSteps)
	lists := newLists(cfg, core, shared, upkeep, endSteps, oversight)
	return &Controller{
		make(chan struct{}), core, shared, upkeep, links, connecting, outfit, endSteps, standbySteps, machines,
		launchSteps, requestSteps, oversight, lists,
	}
}

// Run moves cells until ctx ends, or until the store has failed for good. Cells
// go on running without it.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Before a worker takes a cell: for quietStart after this no pod is told that the first list has not come.
	c.listening.restart(c.loop.clock.Now())
	for range workers {
		c.loop.running.Go(func() { c.loop.work(ctx, c.stepOf) })
	}
	for _, part := range []interface{ run(context.Context) }{
		c.ingress, c.lister, c.sweeping, c.health, c.refilling, c.announcements, c.trust, c.launching, c.tagging, c.boosting,
		c.terminateCalls,
	} {
		c.loop.running.Go(func() { part.run(ctx) })
	}
	for name, lock := range map[string]sync.Locker{
		"the lock of the cells": &c.table.mu, "the lock of the inventory": &c.inventory.mu, "the lock of the standby pools": &c.pools.mu,
	} {
		c.loop.running.Go(func() { c.loop.watchdog.TrackLock(ctx, name, lock) })
	}
	close(c.ready)

	var err error
	select {
	case <-ctx.Done():
	case err = <-c.loop.failed:
	}
	cancel()
	c.loop.queue.ShutDown()
	c.loop.running.Wait()
	for _, e := range c.table.all() {
		c.connections.disconnect(e)
	}
	return err
}

// Close lets go of what New began. It is for a controller that never ran as well, since
// nothing else ends its queue.
func (c *Controller) Close() { c.loop.queue.ShutDown() }

// step is one of a cell's life. Where it has moved the cell to another phase, the step of that follows, whatever its progress.
type step interface {
	Step(ctx context.Context, e *entry) (progress, error)
}

// stepOf returns the step of a phase.
func (c *Controller) stepOf(p apiv1.Phase) step {
	switch p {
	case apiv1.Requested:
		return c.enqueuing
	case apiv1.Launching:
		return c.resuming // only of what an earlier Kip stored: launching sends what this one stores
	case apiv1.Booting:
		return c.joining
	case apiv1.Ready:
		return c.binding
	case apiv1.Bound:
		return c.watching
	case apiv1.Draining:
		return c.draining
	case apiv1.Terminating:
		return c.terminating
	}
	return nil
}
