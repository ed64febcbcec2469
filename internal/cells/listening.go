package cells

import (
	"sync"
	"time"

	"github.com/elotl/kip/internal/lateness"
)

// listening is since when this process could hear the cells.
type listening struct {
	late *lateness.Meter
	// began is when this process loaded the records, and termBegan when it began its term. They are set before anything else runs.
	began, termBegan time.Time

	mu sync.Mutex
	// awake is since when this process has looked at the cells without a gap, and
	// could hear them.
	awake time.Time
}

// since is that time; zero before Run.
func (l *listening) since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.awake
}

// anew has it begin at a time.
func (l *listening) anew(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awake = now
}

// lastSign is when the cell was last heard, by its lease or its tunnel; zero if this
// process never has. The caller holds table.mu.
func (e *entry) lastSign() (last time.Time) {
	if e.api != nil {
		last = e.api.LastHeartbeat()
	}
	if e.session != nil {
		if t := e.session.LastHeard(); t.After(last) {
			last = t
		}
	}
	return last
}

// mayHaveHeard is when the cell was last heard, or could not have been since this
// process did not listen, or kept the cell waiting: that alone does not speak against
// a cloud that is sure. The caller holds table.mu.
func (l *listening) mayHaveHeard(e *entry, sure bool) time.Time {
	last := e.lastSign()
	could := []time.Time{l.since(), l.late.OnTime(), e.connecting}
	if e.session != nil && !sure {
		could = append(could, e.session.HeldBack())
	}
	for _, t := range could {
		if t.After(last) {
			last = t
		}
	}
	return last
}
