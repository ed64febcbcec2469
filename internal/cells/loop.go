package cells

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/fairqueue"
	"github.com/elotl/kip/internal/stall"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// loop runs the steps of cells: one worker handles a cell at a time. What a step needs to
// wake its cell, to wait and to do something slow is here as well.
type loop struct {
	table    *table
	queue    workqueue.TypedRateLimitingInterface[string]
	running  sync.WaitGroup // what workers leave running
	failed   chan error     // ends Run
	watchdog *watchdog.Watchdog
	late     *stall.Meter
	random   backoff.Random
	clock    clock.WithTicker
	log      *slog.Logger
}

func newLoop(cfg Config, t *table) *loop {
	return &loop{
		table: t,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(backoff.Items[string](50*time.Millisecond, 30*time.Second, cfg.Random),
			fairqueue.InTurns(workqueue.TypedRateLimitingQueueConfig[string]{Name: "cells", MetricsProvider: cfg.Queues}, t.namespaceOf)),
		failed:   make(chan error, 1),
		watchdog: cfg.Watchdog,
		late:     cfg.Late,
		random:   cfg.Random,
		clock:    cfg.Clock,
		log:      cfg.Log,
	}
}

// work runs the steps of the cells in the queue until that is shut down.
func (l *loop) work(ctx context.Context, stepOf func(apiv1.Phase) step) {
	for {
		id, shutdown := l.queue.Get()
		if shutdown {
			return
		}
		l.watchdog.Track(ctx, "cells", func(ctx context.Context) { l.process(ctx, id, stepOf) })
		l.queue.Done(id)
	}
}

// process moves one cell as far as it goes now.
func (l *loop) process(ctx context.Context, id string, stepOf func(apiv1.Phase) step) {
	e := l.table.find(id)
	if e == nil {
		return
	}
	got, err := l.advance(ctx, e, stepOf)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		l.retry(e, err)
		return
	case got.state == isAnew:
		l.queue.Add(id)
		return
	case got.state != isUnderWay:
		l.queue.Forget(id)
	}
	l.noteWait(e, got)
	if got.again > 0 {
		l.queue.AddAfter(id, got.again)
	}
}

// noteWait keeps what a cell waits for as the last step of it said, for people. That of a cell that runs its pod is only logged.
func (l *loop) noteWait(e *entry, got progress) {
	why, phase := "", e.cell().Phase
	if got.waits() {
		why = got.why
		l.log.Debug("a cell waits", "cell", e.id, "phase", phase, "for", why, "again", got.again)
	}
	if phase == apiv1.Bound {
		why = ""
	}
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	e.waits = why
}

// retry runs a step again that failed, or ends Run where that would be wrong. Three errors of the store are no failures of a step.
func (l *loop) retry(e *entry, err error) {
	switch {
	case errors.Is(err, errGone):
		return // what was to be done with it is of no use any more
	case errors.Is(err, errMoved), errors.Is(err, errBehind):
		l.queue.Add(e.id) // it goes by the record as it is now, or waits, and says why
		return
	case refusedWrite(err):
		// Somebody else writes our records: two Kips with one identity. To go
		// on would double instances.
		l.fail(err)
		return
	}
	cell := e.cell()
	l.log.Warn("a cell's step failed, retrying", "cell", e.id, "pod", cell.Pod.String(), "phase", cell.Phase, "err", err)
	l.noteWait(e, await("Kip tries again what has failed: "+err.Error()))
	l.queue.AddRateLimited(e.id)
}

// fail ends Run.
func (l *loop) fail(err error) {
	select {
	case l.failed <- err:
	default:
	}
}

// advance runs the steps of a cell's life, from phase to phase, and returns what has come of the last.
func (l *loop) advance(ctx context.Context, e *entry, stepOf func(apiv1.Phase) step) (progress, error) {
	for {
		before := e.cell().Phase
		next := stepOf(before)
		if next == nil {
			return progress{}, fmt.Errorf("a stored cell has the unknown phase %q", before)
		}
		got, err := next.Step(ctx, e)
		if err != nil || e.cell().Phase == before || e.cell().Phase == apiv1.Gone {
			return got, err
		}
	}
}

// spawn does something as a task of its own, which the watchdog tracks and which outlives the one that began it.
func (l *loop) spawn(ctx context.Context, name string, do func(context.Context)) {
	l.running.Go(func() { l.watchdog.Track(ctx, name, do) })
}

// spawnUntil spawns something, and waits until it has called aside, or has ended.
func (l *loop) spawnUntil(ctx context.Context, name string, do func(ctx context.Context, aside func())) {
	goesOn := make(chan struct{})
	aside := sync.OnceFunc(func() { close(goesOn) })
	l.spawn(ctx, name, func(ctx context.Context) {
		defer aside()
		do(ctx, aside)
	})
	defer watchdog.Wait(ctx, watchdog.Store)() // whoever does it is a task too
	<-goesOn
}

// sleep returns false when ctx ends.
func (l *loop) sleep(ctx context.Context, d time.Duration) bool {
	defer watchdog.Wait(ctx, watchdog.Time)()
	select {
	case <-ctx.Done():
		return false
	case <-l.clock.After(d):
		return true
	}
}

// left returns what is left of a time that began then. What Kip was late is not taken off.
func (l *loop) left(since time.Time, limit time.Duration) time.Duration {
	return since.Add(limit + l.late.Since(since)).Sub(l.clock.Now())
}

// leftTo returns what is left of that to a cell: one that refuses this process is not given up.
func (l *loop) leftTo(e *entry, since time.Time, limit time.Duration) time.Duration {
	return e.spared(l.left(since, limit))
}

// wakeStandby has standby cells checked again.
func (l *loop) wakeStandby() {
	for _, cell := range l.table.standbyCells() {
		l.queue.Add(cell.ID)
	}
}
