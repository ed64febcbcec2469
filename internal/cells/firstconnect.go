package cells

import (
	"time"

	"k8s.io/utils/clock"
)

// firstConnect is how long Kip waits for standby cells after it has begun: a connection
// takes tens of milliseconds, a new cell a boot.
const firstConnect = 3 * time.Second

// firstConnections are those that a Kip that has just begun makes to standby cells.
type firstConnections struct {
	clock      clock.PassiveClock
	generation *StoreGeneration
	listening  *listening
}

// awaitsLocked reports whether Kip connects to a cell for the first time, and nothing has gone
// wrong yet. One whose store is behind connects to none that it may give. The caller holds table.mu.
func (s *firstConnections) awaitsLocked(e *entry) bool {
	beginning := s.listening.since().IsZero() || s.clock.Since(s.listening.since()) < firstConnect
	return beginning && !s.generation.isBehind() && e.session().lastError() == nil
}
