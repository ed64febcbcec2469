// Package backoff owns how long is waited between two tries of the same. It must not
// know what is tried.
package backoff

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Random returns a number from 0 up to 1. It is called by several goroutines. A nil
// one stands for that of math/rand.
type Random func() float64

// Jittered is d less a random part of up to a quarter: what has failed at the same time
// is not to be tried again at the same time.
func (r Random) Jittered(d time.Duration) time.Duration {
	if r == nil {
		r = rand.Float64
	}
	return time.Duration(float64(d) * (0.75 + r()/4))
}

// After returns the wait after so many failures in a row: first after one, twice as
// long after each other, up to longest, all with jitter.
func (r Random) After(failures int, first, longest time.Duration) time.Duration {
	wait := first
	for ; failures > 1 && wait < longest; failures-- {
		wait *= 2
	}
	return r.Jittered(min(wait, longest))
}

// Wait waits as long as After returns. It returns the cause of ctx's end if ctx ends first.
func (r Random) Wait(ctx context.Context, clk clock.Clock, failures int, first, longest time.Duration) error {
	timer := clk.NewTimer(r.After(failures, first, longest))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C():
		return nil
	}
}

// PerItem returns the waits of a work queue's items, as After does. It is a
// workqueue.TypedRateLimiter.
type PerItem[T comparable] struct {
	first, longest time.Duration
	random         Random

	mu       sync.Mutex
	failures map[T]int // in a row
}

// Items returns the waits of items of which none has failed.
func Items[T comparable](first, longest time.Duration, random Random) *PerItem[T] {
	return &PerItem[T]{first: first, longest: longest, random: random, failures: map[T]int{}}
}

// When counts a failure of an item, and returns the wait after it.
func (p *PerItem[T]) When(item T) time.Duration {
	p.mu.Lock()
	p.failures[item]++
	failures := p.failures[item]
	p.mu.Unlock()
	return p.random.After(failures, p.first, p.longest)
}

// Forget counts the failures of an item from zero, after a success.
func (p *PerItem[T]) Forget(item T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failures, item)
}

// NumRequeues returns how often an item has failed in a row.
func (p *PerItem[T]) NumRequeues(item T) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failures[item]
}
