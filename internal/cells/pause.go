package cells

import (
	"time"

	"github.com/elotl/kip/internal/backoff"
)

// probePoll is the most that a cell waits before it checks again whether another is still the probe.
const probePoll = 5 * time.Second

// pause is a time in which cells are not launched, since launches like theirs have failed. When it is over one of them is
// launched as the probe, and the others wait for what becomes of it. It is under table.mu.
type pause struct {
	why     string
	until   time.Time // then one cell is launched as the probe
	tries   int       // launches that failed
	probe   string    // the cell that was launched so last; "" for none since the pause was extended
	probing time.Time // until when the others wait for what becomes of that
}

// extendLocked has nothing launched for a time after a launch that failed, longer each time.
func (p *pause) extendLocked(now time.Time, random backoff.Random, first, longest time.Duration) {
	p.tries++
	p.until, p.probe = now.Add(random.After(p.tries, first, longest)), ""
}

// isProbedLocked reports whether other cells are still to wait for the probe. shows reports whether that cell can still show that the
// fault is mended. If it cannot, another cell becomes the probe. The caller holds table.mu, as that of the other methods.
func (p *pause) isProbedLocked(t *table, now time.Time, shows func(*entry) bool) bool {
	e := t.byID[p.probe]
	return e != nil && now.Before(p.probing) && shows(e)
}

// leftLocked returns how long a cell is not launched: as long as the pause lasts, and then until it is to be checked whether another is
// still the probe. It is 0 if the cell may be launched, as the probe unless there is one.
func (p *pause) leftLocked(e *entry, now time.Time, probed bool) time.Duration {
	switch left := p.until.Sub(now); {
	case left > 0:
		return left
	case probed && p.probe != e.id:
		return min(probePoll, p.probing.Sub(now))
	}
	return 0
}

// delay is why a cell is not launched now.
type delay struct {
	left   time.Duration // after how long it is to be checked again
	report func()        // reports it if that is news; called without table.mu
}

// pausing may delay launches.
type pausing interface {
	// delayLocked returns why a cell is not launched now; nil if it may be.
	delayLocked(e *entry) *delay
	// sendLocked notes that a cell is launched now. The cell may be the probe.
	sendLocked(e *entry)
}

// launchPauses delay launches: Kip may have no right to them, and the operator may have to fix something first.
type launchPauses struct {
	rights   *rights
	blockers *blockers
}

// sendLocked returns why a cell is not launched now. If it is nil, the cell is launched, as the probe of each pause that is over.
// The caller holds table.mu.
func (s launchPauses) sendLocked(e *entry) *delay {
	all := []pausing{s.rights, s.blockers}
	for _, p := range all {
		if d := p.delayLocked(e); d != nil {
			return d
		}
	}
	for _, p := range all {
		p.sendLocked(e)
	}
	return nil
}
