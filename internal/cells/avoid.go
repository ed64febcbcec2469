package cells

import (
	"errors"

	"github.com/elotl/kip/internal/cloud"
)

var errSilentZone = errors.New("the cloud does not answer for its instances there")

// avoid has launches leave zones alone that the cloud's list lacks, until the next list but one. A launch there would mostly
// fail as well, and one whose answer is lost is found only when the zone answers again.
func (c *Controller) avoid(zones []string) {
	for _, zone := range zones {
		no := cloud.No(cloud.ErrCapacity, cloud.Scope{Zone: zone}, errSilentZone)
		no.RetryAfter = 2*c.cfg.Health.pollInterval() + callTimeout
		c.cfg.Shortages.Mark(Offer{}, no)
	}
}
