package cells

import (
	"time"

	"github.com/elotl/kip/internal/backoff"
)

// attempts are those at one call about a cell. They are of its worker alone, or, while it is
// being launched, of its launch.
type attempts struct {
	failed int
	began  time.Time // when the first failed
	next   time.Time // none is made before
}

// wait returns how long none is made.
func (a *attempts) wait(now time.Time) time.Duration { return a.next.Sub(now) }

// fail notes that one has failed.
func (a *attempts) fail(now time.Time, err error, random backoff.Random) {
	if a.failed++; a.failed == 1 {
		a.began = now
	}
	a.next = now.Add(max(retryAfter(err), random.After(a.failed, firstRetry, longestRetry)))
}
