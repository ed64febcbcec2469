package cells

import (
	"errors"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

var errSilentZone = errors.New("the cloud does not answer for its instances there")

// silentZoneAge is how long lists must have had no answer of a zone. While launches are on their way, lists follow each other
// within seconds, and one brown-out fails several. It is less than the time between lists otherwise.
const silentZoneAge = 10 * time.Second

// silentZones has launches leave zones alone that do not answer for lists.
type silentZones struct {
	loop      *loop
	shortages Shortages
	health    Health

	mu sync.Mutex
	// since has the zones that did not answer for the last list, and since when they have not.
	since map[string]time.Time
}

// avoid has launches leave zones alone that did not answer for all lists of some seconds, until the next list but one. A launch there
// would mostly fail as well, and one whose answer is lost is found only when the zone answers again. One failure alone may be
// that of a call.
func (s *silentZones) avoid(silent []string) {
	now := s.loop.clock.Now()
	since := make(map[string]time.Time, len(silent))
	s.mu.Lock()
	for _, zone := range silent {
		since[zone] = now
		if first, before := s.since[zone]; before {
			since[zone] = first
		}
	}
	s.since = since
	s.mu.Unlock()
	for _, zone := range silent {
		if zone == "" || now.Sub(since[zone]) < silentZoneAge {
			continue // an empty scope would be all that is sold
		}
		no := cloud.No(cloud.ErrCapacity, cloud.Scope{Zone: zone}, errSilentZone)
		no.RetryAfter = 2*s.health.pollInterval() + callTimeout
		s.shortages.Mark(Offering{}, no)
	}
}
