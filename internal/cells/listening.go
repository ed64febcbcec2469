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

// since returns when this process began to listen, or when the last disruption was over: since then it has heard the cells without a gap.
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

// lastLeaseLocked returns when the kubelet of a cell last renewed its lease, or could not have, by a connection that is open. It notes a
// restart that it counts. The tunnel does not count: a kubelet may hang while its tunnel is heard. The caller holds table.mu.
//
// A restart of listening counts once until the cell is heard again. Without it a cell whose link heals late would end when the disruption
// is over (TestWhenMostCellsAreSilentNoneIsEnded). If it counted more often, cells that fall silent in turns would keep all others from
// their end (TestCellsThatFallSilentInTurnsKeepNoOtherFromItsEnd).
func (l *listening) lastLeaseLocked(e *entry, link connection) time.Time {
	bound := e.cell().StepTime(apiv1.StepBound)
	heard := latest(link.api.LastHeartbeat(), bound, l.began, l.late.OnTime(), link.connecting, link.session.heldBack())
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

// lastSign returns when the cell was last heard, by its lease or its tunnel; zero if this process never has.
func (c connection) lastSign() (last time.Time) {
	if c.api != nil {
		last = c.api.LastHeartbeat()
	}
	return latest(last, c.session.lastHeard())
}

// isHeard reports whether the cell was heard a short while ago.
func (c connection) isHeard(now time.Time) bool { return now.Sub(c.lastSign()) < guard.Fresh }

// mayHaveHeard returns when the cell was last heard, by its lease or its tunnel, or could not have been. That Kip kept the cell waiting
// does not speak against a cloud that is sure.
func (l *listening) mayHaveHeard(e *entry, sure bool) time.Time {
	link := e.connection()
	last := latest(link.lastSign(), l.since(), l.late.OnTime(), link.connecting)
	if !sure {
		last = latest(last, link.session.heldBack())
	}
	return last
}
