package tunnel

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/backoff"
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

// retries are how long to wait after one failure after another: as package backoff says, within the bounds of the time that has
// passed since the first. The zero value has seen none.
type retries struct {
	since        time.Time
	failed, late int // late are those after patience
}

// next is the wait after a failure at now.
func (r *retries) next(now time.Time, random backoff.Random) time.Duration {
	if r.failed++; r.failed == 1 {
		r.since = now
	}
	if now.Sub(r.since) >= patience {
		r.late++
		return random.After(r.late, 2*maxWait, maxLongWait)
	}
	return random.After(r.failed, firstWait, maxWait)
}

// wait waits after a failure at now. It returns ctx's error if that ends first.
func (r *retries) wait(ctx context.Context, now time.Time) error {
	t := time.NewTimer(r.next(now, nil))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
