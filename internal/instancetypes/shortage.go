package instancetypes

import (
	"errors"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
)

// Shortage is what an offering that a cloud did not serve says of others: what the cloud
// named, for as long as it said. Where it named nothing, a quota is one of the
// type's family, wherever it is launched, and any other cause is about that offering
// alone. A lack of room for disks is also about that offering alone: others may need less.
func Shortage(o offering.Offering, err error) capacity.Shortage {
	s := capacity.Shortage{Why: err.Error()}
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		s.For = e.RetryAfter
	}
	scope := cloud.ScopeOf(err)
	switch {
	case scope.Disks:
		s.InstanceType, s.Zone, s.Subnet, s.Spot, s.Pool = o.InstanceType, o.Zone, o.Subnet, &o.Spot, o.Pool()
	case scope.Says():
		s.InstanceType, s.Family, s.Zone, s.Subnet, s.Spot = scope.InstanceType, scope.Family, scope.Zone, scope.Subnet, scope.Spot
		s.Pool = scope.Pool
		if scope.ByCPU {
			s.LeastMilliCPU = o.MilliCPU
		}
	case errors.Is(err, cloud.ErrQuota) && o.Family != "":
		s.Family, s.Spot = o.Family, &o.Spot
	case errors.Is(err, cloud.ErrQuota):
		s.InstanceType, s.Spot, s.Pool = o.InstanceType, &o.Spot, o.Pool()
	default:
		s.InstanceType, s.Zone, s.Subnet, s.Spot, s.Pool = o.InstanceType, o.Zone, o.Subnet, &o.Spot, o.Pool()
	}
	return s
}
