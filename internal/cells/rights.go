package cells

import (
	"errors"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
)

const (
	// firstPause and longestPause are how long no launch is sent after one that Kip
	// had no right to. Rights come back by a person's hand.
	firstPause, longestPause = 5 * time.Second, time.Minute
)

// noRights is how the wait of a cell for Kip's rights begins.
const noRights = "Kip has no right to launch or start instances: "

// rights is whether Kip may launch, as far as the cloud's answers say. What is to be known of it is under table.mu.
type rights struct {
	table  *table
	loop   *loop
	events *reporter
	calls  *pipe.Pipe

	breaker rightsBreaker
	// denied are what Kip had no right to launch since it last had one; they are no more
	// than it takes to pause.
	denied   map[offering.Key]bool
	reported perCell[bool] // that launches are paused
}

// rightsBreaker is a time without launches, since the cloud says that Kip has no right to
// them. Cells that run are left alone.
type rightsBreaker struct {
	breaker
	since time.Time // zero while there is none
	all   bool      // it is of the account, and not of launches alone
}

// deniedTypes are so many that Kip is taken to have no right to any: as many in one
// subnet, and two where the subnets differ as well.
const deniedTypes = 3

// noteDeniedLocked notes an offering that Kip has no right to. It reports whether Kip is taken to have a right
// to none: of what was launched since the last that Kip might, types and subnets differ. The
// caller holds table.mu.
func (s *rights) noteDeniedLocked(o offering.Key) bool {
	types, subnets := map[string]bool{}, map[[2]string]bool{}
	s.denied[o] = true
	for o := range s.denied {
		types[o.InstanceType], subnets[[2]string{o.Zone, o.Subnet}] = true, true
	}
	return len(types) >= deniedTypes || len(types) > 1 && len(subnets) > 1
}

// noteAnswer learns from the answer to a launch of an offering whether Kip may launch.
func (s *rights) noteAnswer(o offering.Key, results cloud.LaunchResults) {
	now := s.loop.clock.Now()
	s.table.mu.Lock()
	was := s.breaker.since
	s.learnLocked(o, results, now)
	is, why := s.breaker.since, s.breaker.why
	s.table.mu.Unlock()
	switch {
	case was.IsZero() && !is.IsZero():
		s.loop.log.Error("Kip has no right to launch instances: no cell is launched until it has; cells that run go on",
			"cloud", s.calls.Name(), "err", why)
	case !was.IsZero() && is.IsZero():
		s.loop.log.Info("Kip may launch instances again", "cloud", s.calls.Name(), "paused", now.Sub(was))
	}
}

// learnLocked begins a pause of launches, or ends it. The caller holds table.mu.
func (s *rights) learnLocked(o offering.Key, results cloud.LaunchResults, now time.Time) {
	allowed := false
	for _, r := range results {
		switch {
		case errors.Is(r.Err, cloud.ErrUnauthorised):
			first := s.breaker.since.IsZero()
			// Reservations are resources of their own, and come before all else.
			if first && denied(r.Err) && (o.Reserved() || !s.noteDeniedLocked(o)) {
				return
			}
			if first {
				s.breaker = rightsBreaker{since: now}
			}
			s.breaker.why, s.breaker.all = r.Err.Error(), cloud.ScopeOf(r.Err).Account
			if first || s.breaker.probe != "" {
				s.breaker.extendLocked(now, s.loop.random, firstPause, longestPause)
			}
			return
		case errors.Is(r.Err, cloud.ErrStale): // the cloud looks for what is not there before it checks the rights
		case r.Err == nil, cloud.Refused(r.Err):
			allowed = true
			clear(s.denied)
		}
	}
	if allowed && !s.breaker.since.IsZero() {
		s.breaker = rightsBreaker{}
		s.wakeRequestedLocked()
	}
}

// delayLocked returns done if a cell may be launched, as far as Kip's rights go; else how long it waits for these. The caller holds
// table.mu.
func (s *rights) delayLocked(e *entry) (got progress, report func()) {
	if s.breaker.since.IsZero() {
		return done, nil
	}
	now := s.loop.clock.Now()
	left := s.breaker.leftLocked(e, now, s.isProbedLocked(now))
	if left == 0 {
		return done, nil
	}
	reported, why := s.reported.of(e), s.breaker.why
	news := !*reported
	*reported = true
	return waitFor(noRights+why, left), func() {
		if news {
			s.events.report(e.cell(), events.NewLaunchesPaused(why))
		}
	}
}

// markProbeLocked makes a cell the probe that is launched, or started, now, where it is time for one: that shows whether Kip has its
// rights. The caller holds table.mu.
func (s *rights) markProbeLocked(e *entry) {
	now := s.loop.clock.Now()
	if !s.breaker.since.IsZero() && !s.isProbedLocked(now) {
		s.breaker.probe, s.breaker.probing = e.id, now.Add(callTimeout)
	}
}

// delayStart returns done if a stopped cell is started now, perhaps as the probe; else how long it waits for Kip's rights. It reports that.
func (s *rights) delayStart(e *entry) progress {
	s.table.mu.Lock()
	got, report := done, func() {}
	if s.breaker.all {
		if got, report = s.delayLocked(e); got.isDone() {
			report = func() {}
			s.markProbeLocked(e)
		}
	}
	s.table.mu.Unlock()
	report()
	return got
}

// passProbeLocked wakes the other cells if this one was the probe and is no longer: one of them becomes the probe. The caller holds
// table.mu.
func (s *rights) passProbeLocked(e *entry) {
	if s.breaker.probe == e.id && !s.isProbedLocked(s.loop.clock.Now()) {
		s.breaker.probe = ""
		s.wakeRequestedLocked()
	}
}

// isProbedLocked reports whether a probe is on its way. The caller holds table.mu.
func (s *rights) isProbedLocked(now time.Time) bool {
	return s.breaker.isProbedLocked(s.table, now, func(e *entry) bool {
		switch cell := e.cell(); cell.Phase {
		case apiv1.Requested:
			// One whose launch had labels goes once more, without: the answer said nothing of Kip's rights, and the next cell's
			// launch may have labels, too.
			return e.launching || cell.NoLabels && e.ending == ""
		case apiv1.Launching:
			return true
		case apiv1.Ready: // its instance is being started
			return cell.Stopped && e.pod.UID != "" && e.ending == ""
		}
		return false
	})
}

// wakeRequestedLocked has all cells that are to be launched checked. The caller holds table.mu.
func (s *rights) wakeRequestedLocked() {
	for _, e := range s.table.byID {
		if e.cell().Phase == apiv1.Requested {
			s.loop.queue.Add(e.id)
		}
	}
}
