package cells

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/fairqueue"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/lanes"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// workers is how many cells are moved along at the same time. A step waits for the
	// store, hardly for the processor, and never for the cloud or an agent: what needs
	// those is done aside.
	workers = 64
	// logsSaved is how many cells are asked for their pods' logs at the same time, logsOfOne how many of one namespace.
	logsSaved, logsOfOne = 256, 192
	// lettingGo is how many cells are waited for at the same time that let go of their
	// volumes: half of what may be asked slowly, since others hang. lettingOfOne is how many of one namespace.
	lettingGo, lettingOfOne = 128, 96
)

// Controller moves every cell through its life. One worker handles a cell at a
// time; while it is being launched, its group does.
type Controller struct {
	cfg       Config
	observers observers
	queue     workqueue.TypedRateLimitingInterface[string]
	polls     chan struct{} // asks the inventory for a fresh look
	refill    chan struct{} // asks for a look at the standby pools
	failed    chan error    // ends Run
	ready     chan struct{}

	agents       *lanes.Lanes
	logs         *keyed.Places[string] // of cells that save logs, by namespace
	letting      *keyed.Places[string] // of cells that let go of volumes, by namespace
	consoles     *keyed.Places[string] // of cells whose consoles are read, by namespace
	launches     *launchQueue
	terminations *gather[*termination]
	taggings     *gather[*entry]
	boosts       *gather[*entry] // to end
	ledger       *ledger
	pools        *pools
	inventory    *inventory
	lineage      *lineage
	born         time.Time      // when the store was new
	began        time.Time      // when this process loaded the records
	running      sync.WaitGroup // what workers leave running

	// The order of locks: the lineage's, entry.writing (of several cells, by their IDs), the
	// ledger's, mu, and then, one at a time, those of the pools, the inventory, the lineage (mu), a
	// gather, Calls and the queue. Nobody calls the store, the cloud, an agent or an
	// observer under mu. Observers are told under those that come before.
	mu    sync.Mutex
	cells map[string]*entry
	// entries has the values of cells, for the queue, which asks under its own lock.
	entries sync.Map
	byPod   map[types.UID]string // live or not, until Gone
	// byInstance has the cell that an instance was launched for, until that is Gone.
	byInstance map[string]*entry
	// byDisk has the cell that a disk was last promised to.
	byDisk map[string]*entry
	// named are the pods with a cell, by their names, which are reused.
	named map[cache.ObjectName][]types.UID
	// byNamespace are the cells of pods.
	byNamespace map[string]map[*entry]bool
	// standby are the cells that no pod has.
	standby map[string]*entry
	pause   pause // of launches
	// denied are what Kip had no right to launch since it last had one; they are no more
	// than it takes to pause.
	denied map[offering]bool
	// unfits are what agents refuse: of the cloud-init file that counts, and of the agent.
	unfits map[ingredients]*unfit
	// versions are those of agents that the node was told of, since they are not Kip's.
	versions map[ingredients]bool
	// checkup is what the cloud's own checks say while cells are silent.
	checkup checkup
	// apart is how many cells are launched at once, where they are fewer than may be.
	apart map[location]fewer
	// silent has the zones that did not answer for the last list, and since when they have not.
	silent map[string]time.Time
	// terminating has, by their instances, the ends that are under way.
	terminating map[string]*termination
	// awake is since when this process has looked at the cells without a gap, and
	// could hear them.
	awake time.Time
	// refusing are the cells that refuse this process.
	refusing refusals
	// unsureSince and unsure are from when until when cells of earlier processes were not
	// connected to, since they may run more than their records say.
	unsureSince, unsure time.Time
}

// New returns a controller; Run starts it.
func New(cfg Config) *Controller {
	c := &Controller{
		cfg:          cfg,
		agents:       lanes.New(),
		logs:         keyed.NewPlaces[string](logsSaved, logsOfOne),
		letting:      keyed.NewPlaces[string](lettingGo, lettingOfOne),
		consoles:     keyed.NewPlaces[string](consolesAtOnce, consolesOfOne),
		polls:        make(chan struct{}, 1),
		refill:       make(chan struct{}, 1),
		failed:       make(chan error, 1),
		ready:        make(chan struct{}),
		launches:     newLaunchQueue(),
		terminations: newGather[*termination](),
		taggings:     newGather[*entry](),
		boosts:       newGather[*entry](),
		ledger:       newLedgerOf(cfg.Store),
		inventory:    newInventory(cfg.Health, cfg.ListLag),
		lineage:      &lineage{store: cfg.Store, listLag: cfg.ListLag},
		cells:        map[string]*entry{},
		byPod:        map[types.UID]string{},
		byInstance:   map[string]*entry{},
		byDisk:       map[string]*entry{},
		named:        map[cache.ObjectName][]types.UID{},
		byNamespace:  map[string]map[*entry]bool{},
		standby:      map[string]*entry{},
		terminating:  map[string]*termination{},
		denied:       map[offering]bool{},
		unfits:       map[ingredients]*unfit{},
		versions:     map[ingredients]bool{},
		apart:        map[location]fewer{},
	}
	c.queue = workqueue.NewTypedRateLimitingQueueWithConfig(backoff.Items[string](50*time.Millisecond, 30*time.Second, cfg.Random),
		fairqueue.InTurns(workqueue.TypedRateLimitingQueueConfig[string]{Name: "cells", MetricsProvider: cfg.Queues}, c.namespaceOf))
	c.pools = newPools(cfg.Pools, cfg.RefillDelay, func() string { return c.template(c.cloudInit()) }, cfg.Clock, cfg.Random)
	return c
}

// Run moves cells until ctx ends, or until the store has failed for good. Cells
// go on running without it.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Before a worker looks at a cell: for quietStart after this no pod is told that the first list has not come.
	c.mu.Lock()
	c.awake = c.cfg.Clock.Now()
	c.mu.Unlock()
	for range workers {
		c.running.Go(func() {
			for {
				id, shutdown := c.queue.Get()
				if shutdown {
					return
				}
				c.cfg.Pulse.Turn(ctx, "cells", func(ctx context.Context) { c.process(ctx, id) })
				c.queue.Done(id)
			}
		})
	}
	for _, loop := range []func(){
		func() { c.keepAdmitted(ctx) },
		func() { c.takeInventory(ctx) },
		func() { c.sweepParts(ctx) },
		func() { c.checkHealth(ctx) },
		func() { c.askCheckup(ctx) },
		func() { c.fillPools(ctx) },
		func() { c.hearInterruptions(ctx) },
		func() { c.tellTrust(ctx) },
		func() { c.launchAll(ctx) },
		func() {
			c.taggings.run(ctx, func(entries []*entry) {
				c.cfg.Pulse.Turn(ctx, "tags", func(ctx context.Context) { c.tagAll(ctx, entries) })
			})
		},
		func() {
			c.boosts.run(ctx, func(entries []*entry) {
				c.cfg.Pulse.Turn(ctx, "boosts", func(ctx context.Context) { c.endBoosts(ctx, entries) })
			})
		},
		func() {
			c.terminations.run(ctx, func(all []*termination) {
				c.cfg.Pulse.Turn(ctx, "terminations", func(ctx context.Context) { c.terminateAll(ctx, all) })
			})
		},
	} {
		c.running.Go(loop)
	}
	for name, lock := range map[string]sync.Locker{
		"the lock of the cells": &c.mu, "the lock of the inventory": &c.inventory.mu, "the lock of the standby pools": &c.pools.mu,
	} {
		c.running.Go(func() { c.cfg.Pulse.Probe(ctx, name, lock) })
	}
	close(c.ready)

	var err error
	select {
	case <-ctx.Done():
	case err = <-c.failed:
	}
	cancel()
	c.queue.ShutDown()
	c.running.Wait()
	c.mu.Lock()
	entries := slices.Collect(maps.Values(c.cells))
	c.mu.Unlock()
	for _, e := range entries {
		c.disconnect(e)
	}
	return err
}

// Close lets go of what New began. It is for a controller that never ran as well, since
// nothing else ends its queue.
func (c *Controller) Close() { c.queue.ShutDown() }

// namespaceOf is that of a cell's pod, by which cells take turns; "" of one that no pod has.
func (c *Controller) namespaceOf(id string) string {
	if e, ok := c.entries.Load(id); ok {
		return e.(*entry).cell().Pod.Namespace
	}
	return ""
}

// enter has a cell found by its ID. The caller holds mu.
func (c *Controller) enter(e *entry) {
	c.cells[e.id] = e
	c.entries.Store(e.id, e)
}

// Ready is closed when cells are being moved.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// process moves one cell as far as it goes now.
func (c *Controller) process(ctx context.Context, id string) {
	c.mu.Lock()
	e := c.cells[id]
	c.mu.Unlock()
	if e == nil {
		return
	}
	again, err := c.advance(ctx, e)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errUnderWay):
		// What failed before is not forgotten: it may fail again.
		if again > 0 {
			c.queue.AddAfter(id, again)
		}
	case err != nil:
		c.again(e, err)
	case again > 0:
		c.queue.Forget(id)
		c.queue.AddAfter(id, again)
	default:
		c.queue.Forget(id)
	}
}

// again retries a step that failed, or ends Run where to retry would be wrong.
func (c *Controller) again(e *entry, err error) {
	if errors.Is(err, errMoved) {
		c.queue.Add(e.id)
		return
	}
	if errors.Is(err, errGone) {
		return // what was to be done with it is of no use any more
	}
	if errors.Is(err, errBehind) {
		c.queue.Add(e.id) // it waits, and says why
		return
	}
	if refusedWrite(err) {
		// Somebody else writes our records: two Kips with one identity. To go
		// on would double instances.
		c.fail(err)
		return
	}
	cell := e.cell()
	c.cfg.Log.Warn("a cell's step failed, retrying", "cell", e.id, "pod", cell.Pod.String(), "phase", cell.Phase, "err", err)
	c.queue.AddRateLimited(e.id)
}

// fail ends Run.
func (c *Controller) fail(err error) {
	select {
	case c.failed <- err:
	default:
	}
}

// advance runs the steps of a cell's life until one waits. It returns after how
// long to look again; 0 means that something else will wake the cell.
func (c *Controller) advance(ctx context.Context, e *entry) (time.Duration, error) {
	for {
		before := e.cell().Phase
		again, err := c.stepOf(before)(ctx, e)
		if err != nil || e.cell().Phase == before || e.cell().Phase == apiv1.Gone {
			return again, err
		}
	}
}

func (c *Controller) stepOf(p apiv1.Phase) func(context.Context, *entry) (time.Duration, error) {
	switch p {
	case apiv1.Requested:
		return c.request
	case apiv1.Launching:
		return c.resume
	case apiv1.Booting:
		return c.join
	case apiv1.Ready:
		return c.bind
	case apiv1.Bound:
		return c.watch
	case apiv1.Draining:
		return c.drain
	case apiv1.Terminating:
		return c.terminate
	}
	return func(context.Context, *entry) (time.Duration, error) {
		return 0, fmt.Errorf("a stored cell has the unknown phase %q", p)
	}
}
