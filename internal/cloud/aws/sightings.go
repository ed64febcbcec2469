package aws

import (
	"maps"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// rememberedFor is how long Kip remembers the zone of an instance that EC2 has stopped to show. EC2 shows one that has
// ended for about an hour.
const rememberedFor = time.Hour

// sightings are what EC2 has said of the instances that it has shown.
type sightings struct {
	mu sync.Mutex
	of map[string]sighting // by ID
}

// sighting is what EC2 has said of an instance: its zone, and the token and the reservation of its launch.
type sighting struct {
	zone, token, reservation string

	at time.Time // zero if EC2 has not shown the instance
}

// note remembers instances. A complete list makes it forget those that EC2 shows no longer.
func (s *sightings) note(now time.Time, all []cloud.Instance, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]sighting{}
	}
	for _, i := range all {
		if i.Zone != "" {
			s.of[i.ID] = sighting{i.Zone, i.Origin.Token, i.Origin.Reservation, now}
		}
	}
	if complete {
		maps.DeleteFunc(s.of, func(_ string, last sighting) bool { return now.Sub(last.at) > rememberedFor })
	}
}

// known returns the instances that EC2 has shown, by ID.
func (s *sightings) known() map[string]sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		return map[string]sighting{}
	}
	return maps.Clone(s.of)
}

// byZone groups IDs by their zones. IDs without a zone are in the group "".
func byZone(ids []string, known map[string]sighting) map[string][]string {
	groups := map[string][]string{}
	for _, id := range ids {
		zone := known[id].zone
		groups[zone] = append(groups[zone], id)
	}
	return groups
}
