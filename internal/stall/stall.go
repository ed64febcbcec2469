// Package stall owns how late this process is. It must not know what that is
// good for: who judges others by what they did not do in time asks it first.
//
// A process is late when it is stopped, when its machine is, or when it has more to
// do than processors: its timers fire late, and what came meanwhile is not read yet.
package stall

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// Period is how often a Meter looks.
	Period = time.Second
	// Tolerance is how much later than it is due a look may come. Go's garbage
	// collector and a cgroup's quota delay a timer by tens of milliseconds.
	Tolerance = time.Second
	// maxSpans is how many times of being late are remembered; an older one
	// counts as if this process had been on time.
	maxSpans = 64
)

// Meter measures how late this process is, by how late its own ticker fires. Run
// must run. A nil Meter is never late.
type Meter struct {
	clock clock.WithTicker
	born  time.Time

	mu    sync.Mutex
	due   time.Time // when the ticker fires at the latest
	spans []span    // oldest first
}

// span is a time in which this process was late.
type span struct{ from, to time.Time }

// New returns a meter that has been on time since now.
func New(clk clock.WithTicker) *Meter {
	now := clk.Now()
	return &Meter{clock: clk, born: now, due: now.Add(Period)}
}

// Run measures until ctx ends.
func (m *Meter) Run(ctx context.Context) error {
	m.look() // it may have begun to run long after New
	ticker := m.clock.NewTicker(Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			m.look()
		}
	}
}

// look notes whether this look came late.
func (m *Meter) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	if now.Sub(m.due) > Tolerance {
		m.add(span{from: m.due, to: now})
	}
	m.due = now.Add(Period)
}

// add remembers a span. One that follows another at once is one with it: a look in
// between that came in time was luck. m.mu is held.
func (m *Meter) add(s span) {
	if n := len(m.spans); n > 0 && s.from.Sub(m.spans[n-1].to) <= Period {
		m.spans[n-1].to = s.to
		return
	}
	if len(m.spans) == maxSpans {
		m.spans = append(m.spans[:0], m.spans[1:]...)
	}
	m.spans = append(m.spans, s)
}

// late is the span that has not ended, if this process is late right now: its
// ticker, too, has yet to fire. m.mu is held.
func (m *Meter) late(now time.Time) (span, bool) {
	return span{from: m.due, to: now}, now.Sub(m.due) > Tolerance
}

// OnTime is since when this process has been on time: now when it is late, and
// never before the meter was made. What others did not do before that proves nothing.
func (m *Meter) OnTime() time.Time {
	if m == nil {
		return time.Time{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	if _, late := m.late(now); late {
		return now
	}
	if n := len(m.spans); n > 0 {
		return m.spans[n-1].to
	}
	return m.born
}

// IsLate says that this process is late, or was until a moment ago.
func (m *Meter) IsLate() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	if _, late := m.late(now); late {
		return true
	}
	n := len(m.spans)
	return n > 0 && now.Sub(m.spans[n-1].to) <= Period
}

// Since is for how long this process was late from t until now. Before the meter
// was made it did not run, so that counts too.
func (m *Meter) Since(t time.Time) (total time.Duration) {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	all := append([]span{{from: t, to: m.born}}, m.spans...)
	if s, late := m.late(now); late {
		all = append(all, s)
	}
	for _, s := range all {
		if s.from.Before(t) {
			s.from = t
		}
		total += max(0, s.to.Sub(s.from))
	}
	return total
}
