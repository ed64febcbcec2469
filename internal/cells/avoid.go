package cells

import (
	"errors"
	"slices"

	"github.com/elotl/kip/internal/cloud"
)

var errSilentZone = errors.New("the cloud does not answer for its instances there")

// avoid has launches leave zones alone that did not answer for two lists in a row, until the next list but one. A launch there
// would mostly fail as well, and one whose answer is lost is found only when the zone answers again. One failure alone may be
// that of a call.
func (c *Controller) avoid(silent []string) {
	c.mu.Lock()
	before := c.silent
	c.silent = silent
	c.mu.Unlock()
	for _, zone := range silent {
		if zone == "" || !slices.Contains(before, zone) {
			continue // an empty scope would be all that is sold
		}
		no := cloud.No(cloud.ErrCapacity, cloud.Scope{Zone: zone}, errSilentZone)
		no.RetryAfter = 2*c.cfg.Health.pollInterval() + callTimeout
		c.cfg.Shortages.Mark(Offer{}, no)
	}
}
