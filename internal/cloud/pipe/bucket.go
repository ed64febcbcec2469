package pipe

import (
	"math"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// bucket is what is known here of a bucket that the cloud keeps. The cloud's own is
// the one that counts: others may use the account too.
type bucket struct {
	cloud.Bucket
	tokens float64
	filled time.Time // zero before the first look, when it is full
	// answered is set with the first answer to a call. Until then it is not known when
	// the cloud has begun to count, and nothing is added: a call that comes too early by
	// the cloud's clock is throttled.
	answered bool
}

func (b *bucket) bounds() bool { return b.Bucket != cloud.Bucket{} }

// fill adds what has come since the last look, each whole second.
func (b *bucket) fill(now time.Time) {
	if b.filled.IsZero() {
		b.tokens, b.filled = b.Capacity, now
	}
	if !b.answered {
		return
	}
	if seconds := math.Floor(now.Sub(b.filled).Seconds()); seconds > 0 {
		b.tokens = min(b.Capacity, b.tokens+seconds*b.Refill)
		b.filled = b.filled.Add(time.Duration(seconds) * time.Second)
	}
}

// answer notes that the cloud has answered a call.
func (b *bucket) answer(now time.Time) {
	if !b.answered {
		b.answered, b.filled = true, now
	}
}

// drain empties a bucket of which the cloud says that it is empty.
func (b *bucket) drain(now time.Time) { b.tokens, b.filled = 0, now }

// lacks is how long it takes until there are n tokens, or as many as it can hold.
func (b *bucket) lacks(n int, now time.Time) time.Duration {
	if !b.bounds() {
		return 0
	}
	b.fill(now)
	missing := min(float64(n), b.Capacity) - b.tokens
	switch {
	case missing <= 0:
		return 0
	case b.Refill <= 0, !b.answered:
		return longestPause
	}
	at := b.filled.Add(time.Duration(math.Ceil(missing/b.Refill)) * time.Second)
	return at.Sub(now)
}

// take returns how many of n tokens there were.
func (b *bucket) take(n int, now time.Time) int {
	if !b.bounds() {
		return n
	}
	b.fill(now)
	n = min(n, int(b.tokens))
	b.tokens -= float64(n)
	return n
}

// giveBack returns tokens that were taken for nothing.
func (b *bucket) giveBack(n int) {
	if b.bounds() {
		b.tokens = min(b.Capacity, b.tokens+float64(n))
	}
}
