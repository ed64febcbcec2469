package cells

import (
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/stall"
)

// listening knows since when this process can hear the cells. For the guard's rule of fresh leases, time in which Kip could not hear a
// cell counts as heard.
type listening struct {
	late *stall.Meter
	// began is when this process loaded the records, and termBegan when it began its term. They are set before anything else runs.
	began, termBegan time.Time

	restarts perCell[restarted] // under table.mu

	mu    sync.Mutex
	awake time.Time
}

// begin notes that this process loads the records.
func (l *listening) begin(now time.Time) {
	l.began = now
	if l.termBegan.IsZero() {
		l.termBegan = now
	}
}

// since is when this process began to listen, or when the last disruption was over: since then it has heard the cells without a gap.
// It is zero before Run.
func (l *listening) since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.awake
}

// restart begins that time.
func (l *listening) restart(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awake = now
}

// restarted is the one time that a silent cell gets for a restart of listening; under the table's lock.
type restarted struct{ heard, since time.Time }

// lastLeaseLocked returns when the kubelet last renewed its lease, or could not have. It notes a restart that it counts. The
// tunnel does not count: a kubelet may hang while its tunnel is heard. The caller holds table.mu.
//
// A restart of listening counts once until the cell is heard again. Without it a cell whose link heals late would end when the disruption
// is over (TestWhenMostCellsAreSilentNoneIsEnded). If it counted more often, cells that fall silent in turns would keep all others from
// their end (TestCellsThatFallSilentInTurnsKeepNoOtherFromItsEnd).
func (l *listening) lastLeaseLocked(e *entry) time.Time {
	heard := latest(e.api.LastHeartbeat(), e.cell().StepTime(apiv1.StepBound), l.began, l.late.OnTime(), e.connecting, e.session.heldBack())
	awake := l.since()
	if !awake.After(heard) {
		return heard
	}
	restart := l.restarts.of(e)
	if !restart.heard.Equal(heard) {
		*restart = restarted{heard: heard, since: awake}
	}
	return restart.since
}

// lastSignLocked returns when the cell was last heard, by its lease or its tunnel; zero if this process never has. The caller holds
// table.mu.
func (e *entry) lastSignLocked() (last time.Time) {
	if e.api != nil {
		last = e.api.LastHeartbeat()
	}
	return latest(last, e.session.lastHeard())
}

// isHeardLocked reports whether the cell was heard a short while ago. The caller holds table.mu.
func (e *entry) isHeardLocked(now time.Time) bool { return now.Sub(e.lastSignLocked()) < guard.Fresh }

// mayHaveHeardLocked returns when the cell was last heard, by its lease or its tunnel, or could not have been. That Kip kept the cell
// waiting does not speak against a cloud that is sure. The caller holds table.mu.
func (l *listening) mayHaveHeardLocked(e *entry, sure bool) time.Time {
	last := latest(e.lastSignLocked(), l.since(), l.late.OnTime(), e.connecting)
	if !sure {
		last = latest(last, e.session.heldBack())
	}
	return last
}

// hearing returns a function that asks mayHaveHeardLocked under table.mu. Call it without that lock.
func (l *listening) hearing(t *table, e *entry, sure bool) func() time.Time {
	return func() time.Time {
		t.mu.Lock()
		defer t.mu.Unlock()
		return l.mayHaveHeardLocked(e, sure)
	}
}
