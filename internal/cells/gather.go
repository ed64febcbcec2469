package cells

import (
	"context"
	"sync"
)

// gather collects what many goroutines add, and hands it on in groups: whatever
// has come together while the last group was being handed on. So what comes alone
// does not wait, and what comes in a burst shares the cost.
type gather[T any] struct {
	wake chan struct{}

	mu    sync.Mutex
	items []T
}

func newGather[T any]() *gather[T] { return &gather[T]{wake: make(chan struct{}, 1)} }

func (g *gather[T]) add(item T) {
	g.mu.Lock()
	g.items = append(g.items, item)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run hands groups to each, one at a time, until ctx ends.
func (g *gather[T]) run(ctx context.Context, each func([]T)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		}
		g.mu.Lock()
		items := g.items
		g.items = nil
		g.mu.Unlock()
		if len(items) > 0 {
			each(items)
		}
	}
}
