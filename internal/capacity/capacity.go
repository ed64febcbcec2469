// Package capacity remembers, in memory, what a cloud had no capacity for, where
// and until when. It knows no cloud and retries nothing: placement asks it, and
// whoever launches tells it.
package capacity

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Cooldown is how long an offering counts as unavailable after a launch of it
// failed: the time that the original and karpenter use. Shorter wastes launches,
// longer wastes money on the next dearer type.
const Cooldown = 3 * time.Minute

// Shortages are the offerings that are unavailable now. It is safe for
// concurrent use.
type Shortages struct {
	clock clock.PassiveClock

	mu    sync.RWMutex
	until map[offering]time.Time
}

type offering struct {
	instanceType, zone string
	spot               bool
}

// New returns an empty record.
func New(c clock.PassiveClock) *Shortages {
	return &Shortages{clock: c, until: map[offering]time.Time{}}
}

// Mark notes that an offering has no capacity and returns the time until which
// it counts as unavailable.
func (s *Shortages) Mark(instanceType, zone string, spot bool) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	// Otherwise what was marked once would be kept for ever.
	for o, until := range s.until {
		if !now.Before(until) {
			delete(s.until, o)
		}
	}
	until := now.Add(Cooldown)
	s.until[offering{instanceType, zone, spot}] = until
	return until
}

// Unavailable reports whether an offering was marked less than Cooldown ago.
func (s *Shortages) Unavailable(instanceType, zone string, spot bool) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	until, marked := s.until[offering{instanceType, zone, spot}]
	return marked && s.clock.Now().Before(until)
}
