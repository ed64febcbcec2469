package pods

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/fairqueue"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// workers is how many pods are reconciled at the same time.
const workers = 32

// loop has pods reconciled: one worker at a time works on a pod, and namespaces take turns.
type loop struct {
	queue    workqueue.TypedRateLimitingInterface[cache.ObjectName]
	watchdog *watchdog.Watchdog
	log      *slog.Logger
	running  sync.WaitGroup
}

func newLoop(cfg Config) *loop {
	return &loop{
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			backoff.Items[cache.ObjectName](100*time.Millisecond, time.Minute, cfg.Random),
			fairqueue.InTurns(workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{Name: "pods", MetricsProvider: cfg.Queues},
				func(pod cache.ObjectName) string { return pod.Namespace })),
		watchdog: cfg.Watchdog,
		log:      cfg.Log,
	}
}

// wake has a pod reconciled soon. It does not block.
func (l *loop) wake(pod cache.ObjectName) { l.queue.Add(pod) }

// wakeAfter has a pod reconciled after a while.
func (l *loop) wakeAfter(pod cache.ObjectName, wait time.Duration) { l.queue.AddAfter(pod, wait) }

// start has workers reconcile until stop. reconcile returns after how long to call it again; 0 means when something changes.
func (l *loop) start(ctx context.Context, reconcile func(context.Context, cache.ObjectName) (time.Duration, error)) {
	for range workers {
		l.running.Go(func() {
			for {
				pod, shutdown := l.queue.Get()
				if shutdown {
					return
				}
				l.watchdog.Track(ctx, "pods", func(ctx context.Context) { l.process(ctx, pod, reconcile) })
				l.queue.Done(pod)
			}
		})
	}
}

// stop ends the queue, and waits for the workers.
func (l *loop) stop() {
	l.queue.ShutDown()
	l.running.Wait()
}

func (l *loop) process(
	ctx context.Context, pod cache.ObjectName, reconcile func(context.Context, cache.ObjectName) (time.Duration, error),
) {
	again, err := reconcile(ctx, pod)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		l.log.Warn("reconcile a pod, retrying", "pod", pod.String(), "err", err)
		l.queue.AddRateLimited(pod)
	case again > 0:
		l.queue.Forget(pod)
		l.queue.AddAfter(pod, again)
	default:
		l.queue.Forget(pod)
	}
}

// pause is why no cells are requested, if none are.
type pause struct{ because atomic.Pointer[string] }

// begin has no cells be requested any more; "" has them be requested again.
func (p *pause) begin(why string) { p.because.Store(&why) }

// why is why none are requested; "" if they are.
func (p *pause) why() string {
	if why := p.because.Load(); why != nil {
		return *why
	}
	return ""
}

// nameOf is the name of a cell's pod.
func nameOf(cell cells.Cell) cache.ObjectName {
	return cache.ObjectName{Namespace: cell.Pod.Namespace, Name: cell.Pod.Name}
}
