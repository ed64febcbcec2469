package gate

import (
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

const (
	// callsPerSecond and callsAtOnce bound the calls of each kind. A call ends hundreds
	// of instances, so that this is no bound for those who wait: it is one for whoever
	// asks again and again.
	callsPerSecond, callsAtOnce = 10, 50
)

// ownBudget bounds calls alike, whatever they are about.
type ownBudget struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	calls map[cloud.Call]*rate.Limiter
}

var _ Budget = (*ownBudget)(nil)

func newOwnBudget(c clock.PassiveClock) *ownBudget {
	return &ownBudget{clock: c, calls: map[cloud.Call]*rate.Limiter{}}
}

func (b *ownBudget) Take(call cloud.Call, _ int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	limiter := b.calls[call]
	if limiter == nil {
		limiter = rate.NewLimiter(callsPerSecond, callsAtOnce)
		b.calls[call] = limiter
	}
	now := b.clock.Now()
	reserved := limiter.ReserveN(now, 1)
	wait := reserved.DelayFrom(now)
	if wait > 0 {
		reserved.CancelAt(now)
	}
	return wait
}
