package cells

import (
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

	mu    sync.Mutex // before the table's
	pause pause      // of launches
	// denied are what Kip had no right to launch since it last had one; they are no more
	// than it takes to pause.
	denied map[offeringKey]bool
	cells  perCell[rightsState] // under mu
}

// rightsState is what a cell that is to be launched has to do with them.
type rightsState struct {
	told   bool // that launches are paused
	probes bool // it was let through to see whether Kip has its rights
}

// pause is a time without launches, since the cloud says that Kip has no right to
// them. Cells that run are left alone.
type pause struct {
	since  time.Time // zero while there is none
	until  time.Time // the next launch is sent then, to see whether it is over
	tries  int       // launches that were refused
	probed bool      // a launch was let through to see
	again  *entry    // the cell of that launch, where it is let through once more without labels
	why    string
	all    bool // it is of the account, and not of launches alone
}

// deniedTypes are so many that Kip is taken to have no right to any: as many in one
// subnet, and two where the subnets differ as well.
const deniedTypes = 3

// noteDenied notes an offering that Kip has no right to. It reports whether Kip is taken to have a right
// to none: of what was launched since the last that Kip might, types and subnets differ. The
// caller holds mu.
func (s *rights) noteDenied(o offeringKey) bool {
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
			if first && denied(r.Err) && (o.reservation != "" || !s.noteDenied(o)) {
				return
			}
			if first {
				s.pause = pause{since: now}
			}
			s.pause.why, s.pause.all = r.Err.Error(), cloud.ScopeOf(r.Err).Account
			if first || s.pause.probed {
				s.pause.probed, s.pause.again = false, nil
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
	s.wakeRequested()
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

// delayLaunch returns how long a cell has to wait for Kip's rights, and reports why; 0 where there is no pause, or where it
// is time for a probe.
func (s *rights) delayLaunch(e *entry) time.Duration { return s.delay(e, false) }

// probeOrDelay is delayLaunch for a cell that nothing else holds up. Where it is time for a probe, the cell becomes it: its
// launch shows whether Kip has its rights, and the others wait for the answer.
func (s *rights) probeOrDelay(e *entry) time.Duration { return s.delay(e, true) }

func (s *rights) delay(e *entry, probe bool) time.Duration {
	now, state := s.loop.clock.Now(), s.cells.of(e)
	s.mu.Lock()
	if probe {
		state.probes = false
	}
	if s.pause.since.IsZero() {
		s.mu.Unlock()
		return 0
	}
	left := s.pause.until.Sub(now)
	if left <= 0 || s.pause.again == e {
		if probe {
			s.pause.until, s.pause.probed, s.pause.again, state.probes = now.Add(callTimeout), true, nil, true
		}
		s.mu.Unlock()
		return 0
	}
	told, why := state.told, s.pause.why
	state.told = true
	s.mu.Unlock()
	if !told {
		s.events.report(e.cell(), events.NewLaunchesPaused(why))
	}
	return left
}

// giveProbeBack has another cell be the probe where this one was to be it, and nothing of it was sent.
func (s *rights) giveProbeBack(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.cells.of(e)
	if !state.probes {
		return
	}
	state.probes = false
	if s.pause.since.IsZero() || !s.pause.probed {
		return
	}
	s.pause.until, s.pause.probed = s.loop.clock.Now(), false
	s.wakeRequested()
}

// probeAgain lets a cell through once more that was the probe. Its launch had labels, so the answer says
// nothing of the rights, and the next cell's may have labels, too.
func (s *rights) probeAgain(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cells.of(e).probes && s.pause.probed {
		s.pause.again = e
	}
}

// wakeRequested has all cells that are to be launched checked. The caller holds mu.
func (s *rights) wakeRequested() {
	for _, e := range s.table.all() {
		if e.cell().Phase == apiv1.Requested {
			s.loop.queue.Add(e.id)
		}
	}
}
