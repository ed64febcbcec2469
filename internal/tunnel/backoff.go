package tunnel

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// A cell that boots refuses connections for a while, and its pod waits:
	// so the first waits are short.
	firstWait = 20 * time.Millisecond
	// maxWait is the longest in the first patience of failing.
	maxWait = time.Second
	// patience after the first failure the machine is not just booting; its
	// owner decides what to do about it, and maxLongWait is often enough.
	patience    = 3 * time.Minute
	maxLongWait = 10 * time.Second
)

// backoff is how long to wait after one failure after another. The zero value
// has seen none.
type backoff struct {
	since time.Time
	last  time.Duration
}

// next is the wait after a failure at now.
func (b *backoff) next(now time.Time) time.Duration {
	if b.since.IsZero() {
		b.since = now
	}
	limit := maxWait
	if now.Sub(b.since) >= patience {
		limit = maxLongWait
	}
	b.last = min(max(2*b.last, firstWait), limit)
	return b.last
}

// wait waits after a failure at now, a random part of up to a quarter less than
// next, so that many that failed together do not try again together. It returns
// ctx's error if that ends first.
func (b *backoff) wait(ctx context.Context, now time.Time) error {
	d := b.next(now)
	t := time.NewTimer(d - rand.N(d/4))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
