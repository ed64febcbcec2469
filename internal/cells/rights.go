package cells

import (
	"context"
	"errors"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
)

const (
	// firstPause and longestPause are how long no launch is sent after one that Kip
	// had no right to. Rights come back by a person's hand.
	firstPause, longestPause = 5 * time.Second, time.Minute
)

// rights is whether Kip may launch, as far as the cloud's answers say.
type rights struct {
	table  *table
	loop   *loop
	events *reporter
	calls  *pipe.Pipe

	mu    sync.Mutex
	pause pause // of launches
	// denied are what Kip had no right to launch since it last had one; they are no more
	// than it takes to pause.
	denied map[offeringKey]bool
	told   perCell[bool] // that launches are paused; under mu
}

// pause is a time without launches, since the cloud says that Kip has no right to
// them. Cells that run are left alone.
type pause struct {
	since   time.Time // zero while there is none
	until   time.Time // then one cell is launched as the probe, to see whether it is over
	tries   int       // launches that were refused
	probe   string    // the cell that was launched so, until its answer; "" for none
	probing time.Time // until when the others wait for that
	why     string
	all     bool // it is of the account, and not of launches alone
}

// probePoll is how often a cell checks whether another is still the probe.
const probePoll = 5 * time.Second

// deniedTypes are so many that Kip is taken to have no right to any: as many in one
// subnet, and two where the subnets differ as well.
const deniedTypes = 3

// noteDeniedLocked notes an offering that Kip has no right to. It reports whether Kip is taken to have a right
// to none: of what was launched since the last that Kip might, types and subnets differ. The
// caller holds mu.
func (s *rights) noteDeniedLocked(o offeringKey) bool {
	types, subnets := map[string]bool{}, map[[2]string]bool{}
	s.denied[o] = true
	for o := range s.denied {
		types[o.instanceType], subnets[[2]string{o.zone, o.subnet}] = true, true
	}
	return len(types) >= deniedTypes || len(types) > 1 && len(subnets) > 1
}

// noteAnswer learns from the answer to a launch of an offering whether Kip may launch.
func (s *rights) noteAnswer(o offeringKey, results cloud.LaunchResults) {
	now := s.loop.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	allowed := false
	for _, r := range results {
		switch {
		case errors.Is(r.Err, cloud.ErrUnauthorised):
			first := s.pause.since.IsZero()
			// Reservations are resources of their own, and come before all else.
			if first && denied(r.Err) && (o.reservation != "" || !s.noteDeniedLocked(o)) {
				return
			}
			if first {
				s.pause = pause{since: now}
			}
			s.pause.why, s.pause.all = r.Err.Error(), cloud.ScopeOf(r.Err).Account
			if first || s.pause.probe != "" {
				s.pause.probe = ""
				s.pause.tries++
				s.pause.until = now.Add(s.loop.random.After(s.pause.tries, firstPause, longestPause))
			}
			if first {
				s.loop.log.Error("Kip has no right to launch instances: no cell is launched until it has; cells that run go on",
					"cloud", s.calls.Name(), "err", r.Err)
			}
			return
		case errors.Is(r.Err, cloud.ErrStale): // the cloud looks for what is not there before it checks the rights
		case r.Err == nil, cloud.Refused(r.Err):
			allowed = true
			clear(s.denied)
		}
	}
	if !allowed || s.pause.since.IsZero() {
		return
	}
	s.loop.log.Info("Kip may launch instances again", "cloud", s.calls.Name(), "paused", now.Sub(s.pause.since))
	s.pause = pause{}
	s.wakeRequestedLocked()
}

// prepare waits until Kip has its rights, or the launch of a cell is to show whether it has.
func (s *rights) prepare(_ context.Context, e *entry) (progress, error) {
	if wait := s.probeOrDelay(e); wait > 0 {
		return waitFor(wait), nil
	}
	return done, nil
}

// probeOrDelayStart returns how long a stopped cell has to wait for Kip's rights; 0 if it may be started,
// perhaps as the probe that shows whether Kip has them.
func (s *rights) probeOrDelayStart(e *entry) time.Duration {
	s.mu.Lock()
	all := s.pause.all
	s.mu.Unlock()
	if !all {
		return 0
	}
	return s.probeOrDelay(e)
}

// probeOrDelay returns how long a cell has to wait for Kip's rights, and reports why; 0 where there is no pause. Where it is
// time for a probe, the cell becomes it: its launch shows whether Kip has its rights, and the others wait for the answer.
func (s *rights) probeOrDelay(e *entry) time.Duration {
	now := s.loop.clock.Now()
	s.mu.Lock()
	if s.pause.since.IsZero() {
		s.mu.Unlock()
		return 0
	}
	wait := s.pause.until.Sub(now)
	if wait <= 0 {
		if wait = s.becomeProbeLocked(e, now); wait <= 0 {
			s.mu.Unlock()
			return 0
		}
	}
	told, why := *s.told.of(e), s.pause.why
	*s.told.of(e) = true
	s.mu.Unlock()
	if !told {
		s.events.report(e.cell(), events.NewLaunchesPaused(why))
	}
	return wait
}

// becomeProbeLocked makes a cell the probe and returns 0, unless another is. Then it returns after how long to ask again. From then on a
// cell that is to be launched is its group's: otherwise it would not be known as the probe until it is queued. The caller holds mu.
func (s *rights) becomeProbeLocked(e *entry, now time.Time) time.Duration {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	probed := s.isProbedLocked(now)
	if probed && s.pause.probe != e.id {
		return min(probePoll, s.pause.probing.Sub(now))
	}
	if !probed {
		s.pause.probe, s.pause.probing = e.id, now.Add(callTimeout)
	}
	if e.cell().Phase == apiv1.Requested {
		e.giveToGroupLocked()
	}
	return 0
}

// passProbe wakes the other cells if this one was the probe and is no longer: one of them becomes the probe.
func (s *rights) passProbe(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause.probe != e.id {
		return
	}
	s.table.mu.Lock()
	probed := s.isProbedLocked(s.loop.clock.Now())
	s.table.mu.Unlock()
	if !probed {
		s.pause.probe = ""
		s.wakeRequestedLocked()
	}
}

// isProbedLocked reports whether a probe is on its way. Whatever keeps that cell from being launched, and whatever it ends for, another is
// the probe then. The caller holds mu and table.mu.
func (s *rights) isProbedLocked(now time.Time) bool {
	e := s.table.byID[s.pause.probe]
	if e == nil || !now.Before(s.pause.probing) {
		return false
	}
	switch cell := e.cell(); cell.Phase {
	case apiv1.Requested:
		// One whose launch had labels goes once more, without: the answer said nothing of Kip's rights, and the next cell's launch
		// may have labels, too.
		return e.launching || cell.NoLabels && e.ending == ""
	case apiv1.Launching:
		return true
	case apiv1.Ready: // its instance is being started
		return cell.Stopped && e.pod.UID != "" && e.ending == ""
	}
	return false
}

// wakeRequestedLocked has all cells that are to be launched checked. The caller holds mu.
func (s *rights) wakeRequestedLocked() {
	for _, e := range s.table.all() {
		if e.cell().Phase == apiv1.Requested {
			s.loop.queue.Add(e.id)
		}
	}
}
