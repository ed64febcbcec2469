// Package backoff owns how long is waited between two tries of the same. It must not
// know what is tried.
package backoff

import (
	"math/rand/v2"
	"time"

	"k8s.io/client-go/util/workqueue"
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

// Items returns the waits of a work queue's items: first after one failure, twice as
// long after each other, up to longest, all with jitter.
func Items[T comparable](first, longest time.Duration, random Random) workqueue.TypedRateLimiter[T] {
	return jittered[T]{workqueue.NewTypedItemExponentialFailureRateLimiter[T](first, longest), random}
}

type jittered[T comparable] struct {
	workqueue.TypedRateLimiter[T]
	random Random
}

func (j jittered[T]) When(item T) time.Duration {
	return j.random.Jittered(j.TypedRateLimiter.When(item))
}
