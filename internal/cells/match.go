package cells

import (
	"slices"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// matching finds the standby cells that fit requests.
type matching struct {
	table     *table
	pools     *pools
	recipe    *recipe
	nodeNames *nodeNames
	first     *firstConnections
	upgrades  *upgrades
}

// fits reports whether a standby cell is as good for the request as a new one.
func (s *matching) fits(r Request, cell *Cell) bool {
	best, has := r.Offerings[0], cell.Offering()
	if tooSmall(cell.Measured, r.Needs, s.recipe.reserved) {
		return false
	}
	if r.Special || has.InstanceType != best.InstanceType || has.CapacityType() != best.CapacityType() || has.DiskBytes != best.DiskBytes {
		return false
	}
	return slices.ContainsFunc(r.Offerings, func(o Offering) bool { return o.Key() == has.Key() })
}

// findLocked returns the standby cell that fits a request best: one that is ready,
// else the one that will be soonest; nil where there is none. connecting says that a better
// one may be connected in a moment. The caller holds table.mu.
func (s *matching) findLocked(r Request) (best *entry, connecting bool) {
	if s.pools.none() {
		return nil, false
	}
	template := s.recipe.template(s.recipe.digest())
	rank := func(cell *Cell) int {
		switch {
		case cell.Phase == apiv1.Ready && !cell.Stopped && s.nodeNames.of(cell) == r.Node:
			return 3
		case cell.Phase == apiv1.Ready && !cell.Stopped:
			return 2 // its kubelet has to be started again
		case cell.Phase == apiv1.Ready && cell.Instance.State == cloud.Stopped:
			return 1 // one that is stopping yet cannot be started
		}
		return 0 // the pod would wait for a boot that may fail
	}
	for _, e := range s.table.standby {
		cell := e.cell()
		if e.ending != "" || !cell.Interrupted.IsZero() || !s.upgrades.sinceLocked(e).IsZero() || rank(cell) == 0 || !s.fits(r, cell) {
			continue
		}
		if rank(cell) >= 2 && !e.session().connected() {
			connecting = connecting || s.first.awaitsLocked(e)
			continue // it may be lost
		}
		if best == nil || rank(cell) > rank(best.cell()) || cell.Template == template && best.cell().Template != template {
			best = e
		}
	}
	return best, connecting && (best == nil || rank(best.cell()) < 2)
}
