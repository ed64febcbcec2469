package aws

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// The facts. Each is of one region.
const (
	// factSecondaries and factNoSecondaries are whether EC2 takes a number of secondary addresses in a call for several instances.
	factSecondaries, factNoSecondaries = "secondary-addresses-together", "no-secondary-addresses-together"
	// factCreditRight and factNoCreditRight are whether Kip may change the CPU credits of instances.
	factCreditRight, factNoCreditRight = "may-change-cpu-credits", "may-not-change-cpu-credits"
)

// holds reports whether a fact holds in Kip's region.
func (b *base) holds(fact string) bool { return b.cfg.Facts.Holds(b.factOf(fact)) }

// note notes a fact of Kip's region.
func (b *base) note(fact string, lasts time.Duration) { b.cfg.Facts.Note(b.factOf(fact), lasts) }

func (b *base) factOf(fact string) string { return cloudName + "/" + b.cfg.Region + "/" + fact }

// memory is Facts that end with the process.
type memory struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	until map[string]time.Time
}

func (m *memory) Holds(fact string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.clock.Now().Before(m.until[fact])
}

func (m *memory) Note(fact string, lasts time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.until[fact] = m.clock.Now().Add(lasts)
}
