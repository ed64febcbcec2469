package cells

import (
	"time"

	"github.com/elotl/kip/internal/backoff"
)

// probePoll is the most that a cell waits before it checks again whether another is still the probe.
const probePoll = 5 * time.Second

// breaker is a circuit breaker: no cells are launched for a time, since launches like theirs have failed. When the time is over one of
// them is launched as the probe, and the others wait for what becomes of it. It is under table.mu.
type breaker struct {
	why     string
	until   time.Time // then one cell is launched as the probe
	tries   int       // launches that failed
	probe   string    // the cell that was launched so last; "" for none since the time was extended
	probing time.Time // until when the others wait for what becomes of that
}

// extendLocked has nothing launched for a time after a launch that failed, longer each time.
func (p *breaker) extendLocked(now time.Time, random backoff.Random, first, longest time.Duration) {
	p.tries++
	p.until, p.probe = now.Add(random.After(p.tries, first, longest)), ""
}

// isProbedLocked reports whether other cells are still to wait for the probe. shows reports whether that cell can still show that the
// fault is mended. If it cannot, another cell becomes the probe. The caller holds table.mu, as that of the other methods.
func (p *breaker) isProbedLocked(t *table, now time.Time, shows func(*entry) bool) bool {
	e := t.byID[p.probe]
	return e != nil && now.Before(p.probing) && shows(e)
}

// leftLocked returns how long a cell is not launched: as long as the time lasts, and then until it is to be checked whether another is
// still the probe. It is 0 if the cell may be launched, as the probe unless there is one.
func (p *breaker) leftLocked(e *entry, now time.Time, probed bool) time.Duration {
	switch left := p.until.Sub(now); {
	case left > 0:
		return left
	case probed && p.probe != e.id:
		return min(probePoll, p.probing.Sub(now))
	}
	return 0
}

// launchBreaker may delay launches.
type launchBreaker interface {
	// delayLocked returns done if a cell may be launched now, else what it waits for. Then report reports that, if it is news. It is
	// called without table.mu.
	delayLocked(e *entry) (got progress, report func())
	// markProbeLocked notes that a cell is launched now: as the probe, if it is time for one.
	markProbeLocked(e *entry)
}

// launchBreakers delay launches: Kip may have no right to them, and the operator may have to fix something first.
type launchBreakers struct {
	rights   *rights
	blockers *blockers
}

// passLocked returns done if nothing delays the launch of a cell. Then the cell is launched, as the probe of each breaker whose time
// is over. Otherwise it returns what delayLocked does. The caller holds table.mu.
func (s launchBreakers) passLocked(e *entry) (got progress, report func()) {
	all := []launchBreaker{s.rights, s.blockers}
	for _, p := range all {
		if got, report := p.delayLocked(e); !got.isDone() {
			return got, report
		}
	}
	for _, p := range all {
		p.markProbeLocked(e)
	}
	return done, nil
}
