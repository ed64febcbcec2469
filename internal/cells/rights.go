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
}

// rightsState is what a cell that is to be launched has to do with them.
type rightsState struct {
	told  bool // that launches are paused
	looks bool // it was let through to see whether Kip has its rights
}

// pause is a time without launches, since the cloud says that Kip has no right to
// them. Cells that run are left alone.
type pause struct {
	since time.Time // zero while there is none
	until time.Time // the next launch is sent then, to see whether it is over
	tries int       // launches that were refused
	asked bool      // a launch was let through to see
	again *entry    // the cell of that launch, where it is let through once more without labels
	why   string
	all   bool // it is of the account, and not of launches alone
}

// denied says that Kip has no right to the one offering, perhaps to others.
func denied(err error) bool {
	s := cloud.ScopeOf(err)
	return errors.Is(err, cloud.ErrUnauthorised) && s.Says() && !s.Account
}

// deniedTypes are so many that Kip is taken to have no right to any: as many in one
// subnet, and two where the subnets differ as well.
const deniedTypes = 3

// toAll notes an offering that Kip has no right to. It returns whether that is to be said
// of all: of what was launched since the last that Kip might, types and subnets differ. The
// caller holds mu.
func (s *rights) toAll(o offeringKey) bool {
	types, subnets := map[string]bool{}, map[[2]string]bool{}
	s.denied[o] = true
	for o := range s.denied {
		types[o.instanceType], subnets[[2]string{o.zone, o.subnet}] = true, true
	}
	return len(types) >= deniedTypes || len(types) > 1 && len(subnets) > 1
}

// heard learns from the answer to a launch of an offering whether Kip may launch.
func (s *rights) heard(o offeringKey, results cloud.LaunchResults) {
	now := s.loop.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	allowed := false
	for _, r := range results {
		switch {
		case errors.Is(r.Err, cloud.ErrUnauthorised):
			first := s.pause.since.IsZero()
			// Reservations are resources of their own, and come before all else.
			if first && denied(r.Err) && (o.reservation != "" || !s.toAll(o)) {
				return
			}
			if first {
				s.pause = pause{since: now}
			}
			s.pause.why, s.pause.all = r.Err.Error(), cloud.ScopeOf(r.Err).Account
			if first || s.pause.asked {
				s.pause.asked, s.pause.again = false, nil
				s.pause.tries++
				s.pause.until = now.Add(s.loop.random.After(s.pause.tries, firstPause, longestPause))
			}
			if first {
				s.loop.log.Error("Kip has no right to launch instances: no cell is launched until it has; cells that run go on",
					"cloud", s.calls.Name(), "err", r.Err)
			}
			return
		case errors.Is(r.Err, cloud.ErrStale): // what is not there is looked for before the rights are
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

// startsPaused is how long a stopped cell has to wait for Kip's rights; 0 if it may be started,
// perhaps to see whether Kip has them.
func (s *rights) startsPaused(e *entry) time.Duration {
	s.mu.Lock()
	all := s.pause.all
	s.mu.Unlock()
	if !all {
		return 0
	}
	return s.looks(e)
}

// launchesPaused is how long a cell has to wait for Kip's rights; 0 where there is no pause, or where it is
// time that some cell looks whether it is over.
func (s *rights) launchesPaused(e *entry) time.Duration { return s.paused(e, false) }

// looks is launchesPaused for a cell that nothing else holds up: it is the one that is
// let through, to see, and the others wait for its answer.
func (s *rights) looks(e *entry) time.Duration { return s.paused(e, true) }

func (s *rights) paused(e *entry, looks bool) time.Duration {
	now := s.loop.clock.Now()
	s.mu.Lock()
	if looks {
		e.rights.looks = false
	}
	if s.pause.since.IsZero() {
		s.mu.Unlock()
		return 0
	}
	left := s.pause.until.Sub(now)
	if left <= 0 || s.pause.again == e {
		if looks {
			s.pause.until, s.pause.asked, s.pause.again, e.rights.looks = now.Add(callTimeout), true, nil, true
		}
		s.mu.Unlock()
		return 0
	}
	told, why := e.rights.told, s.pause.why
	e.rights.told = true
	s.mu.Unlock()
	if !told {
		s.events.report(e.cell(), events.NewLaunchesPaused(why))
	}
	return left
}

// giveTurnBack has another cell look for Kip's rights, where this one was to and nothing of it was sent.
func (s *rights) giveTurnBack(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.rights.looks {
		return
	}
	e.rights.looks = false
	if s.pause.since.IsZero() || !s.pause.asked {
		return
	}
	s.pause.until, s.pause.asked = s.loop.clock.Now(), false
	s.wakeRequested()
}

// looksAgain lets a cell through once more that was to look for Kip's rights. Its launch had labels, so the answer says
// nothing of the rights, and the next cell's may have labels, too.
func (s *rights) looksAgain(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.rights.looks && s.pause.asked {
		s.pause.again = e
	}
}

// wakeRequested has all cells that are to be launched looked at. The caller holds mu.
func (s *rights) wakeRequested() {
	for _, e := range s.table.all() {
		if e.cell().Phase == apiv1.Requested {
			s.loop.queue.Add(e.id)
		}
	}
}
