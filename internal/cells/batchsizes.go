package cells

import (
	"maps"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
	"k8s.io/utils/clock"
)

// batchSizes is how many cells one call may launch, as the cloud's answers say.
type batchSizes struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	apart map[location]fewer // where they are fewer than may be
}

// apartFor is how long cells are launched one by one where there was no room for several, and
// fewer at once when the cloud had not let as many pass.
const apartFor = 10 * time.Minute

// fewer is how many cells one call may launch, and until when.
type fewer struct {
	most  int
	until time.Time
}

// note notes where cells are to be launched one by one, and that fewer are to be launched
// at once.
func (s *batchSizes) note(o Offering, cells int, known []*outcome) {
	until := s.clock.Now().Add(apartFor)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range known {
		switch one.verdict {
		case isApart:
			s.apart[location{o.Zone, o.Subnet}] = fewer{1, until}
		case isTooMany:
			most := cells / 2
			if already, is := s.apart[location{}]; is { // calls that were under way had more
				most = min(most, already.most)
			}
			s.apart[location{}] = fewer{max(1, most), until}
			return // they are all so
		}
	}
}

// atMost returns how many cells of an offering one call may launch now.
func (s *batchSizes) atMost() func(offering.Key) int {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.apart, func(_ location, f fewer) bool { return !now.Before(f.until) })
	apart := maps.Clone(s.apart)
	return func(o offering.Key) int {
		most := cloud.MaxLaunch
		for _, l := range []location{{}, {o.Zone, o.Subnet}} {
			if f, is := apart[l]; is {
				most = min(most, f.most)
			}
		}
		return most
	}
}

// throttledTries is how often in a row a launch of several is throttled before it is made in
// smaller ones: the cloud may have tokens for few machines only, since others take them as they
// come, or it never has as many, and the call would wait for ever. Where requests are what is
// short, the first tries pass.
const throttledTries = 3

// throttledTries is one where that has just been so: each of these answers makes the next wait longer.
func (s *batchSizes) throttledTries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, is := s.apart[location{}]; is && s.clock.Now().Before(f.until) {
		return 1
	}
	return throttledTries
}
