package cells

import (
	"errors"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

var errSilentZone = errors.New("the cloud does not answer for its instances there")

// silentZoneAge is how long lists must have had no answer of a zone. While launches are on their way, lists follow each other
// within seconds, and one brown-out fails several. It is less than the time between lists otherwise.
const silentZoneAge = 10 * time.Second

// avoid has launches leave zones alone that did not answer for all lists of some seconds, until the next list but one. A launch there
// would mostly fail as well, and one whose answer is lost is found only when the zone answers again. One failure alone may be
// that of a call.
func (c *Controller) avoid(silent []string) {
	now := c.cfg.Clock.Now()
	since := make(map[string]time.Time, len(silent))
	c.mu.Lock()
	for _, zone := range silent {
		since[zone] = now
		if first, before := c.silent[zone]; before {
			since[zone] = first
		}
	}
	c.silent = since
	c.mu.Unlock()
	for _, zone := range silent {
		if zone == "" || now.Sub(since[zone]) < silentZoneAge {
			continue // an empty scope would be all that is sold
		}
		no := cloud.No(cloud.ErrCapacity, cloud.Scope{Zone: zone}, errSilentZone)
		no.RetryAfter = 2*c.cfg.Health.pollInterval() + callTimeout
		c.cfg.Shortages.Mark(Offer{}, no)
	}
}
