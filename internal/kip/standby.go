package kip

import (
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/offering"
)

// standbyPools are the pools of cells.standbyCells.
func (t *term) standbyPools(c cloudSide, all *nodes.Nodes) ([]cells.Pool, error) {
	if err := t.cfg.CheckStopped(c.machines.Optional().Stopper != nil); err != nil {
		return nil, err
	}
	var pools []cells.Pool
	for i, s := range t.cfg.Cells.StandbyCells {
		pool, err := t.standbyPool(c, all, s)
		if err != nil {
			return nil, fmt.Errorf("%s: cells.standbyCells[%d]%w", t.ProviderConfig, i, err)
		}
		pools = append(pools, pool)
	}
	return pools, nil
}

// standbyPool is one of them. The text of an error goes on where the name of its key
// ends.
func (t *term) standbyPool(c cloudSide, all *nodes.Nodes, s config.StandbyCells) (cells.Pool, error) {
	if !slices.ContainsFunc(c.instanceTypes.Types(), func(is catalog.InstanceType) bool { return is.Name == s.InstanceType }) {
		return cells.Pool{}, fmt.Errorf(".instanceType: %q is not a type of cloud.%s here", s.InstanceType, c.machines.Name())
	}
	name := s.InstanceType
	if s.Zone != "" {
		name += "/" + s.Zone
	}
	if s.Spot {
		name += "/spot"
	}
	if s.Dedicated {
		name += "/dedicated"
	}
	if s.Stopped {
		name += "/stopped"
	}
	disk := t.cfg.Cells.DefaultVolumeSize.Value()
	if len(offeringsOfPool(c.instanceTypes.Types(), s, disk, name)) == 0 {
		return cells.Pool{}, fmt.Errorf(": %s is not offered there (zone %q, spot %t, dedicated %t)", s.InstanceType, s.Zone, s.Spot, s.Dedicated)
	}
	useless := func(o offering.Offering) bool {
		_, is := all.NodeWith(o)
		return !is
	}
	return cells.Pool{
		Name:    name,
		Count:   s.Count,
		Stopped: s.Stopped,
		Useless: useless,
		Offerings: func() ([]offering.Offering, error) {
			used := slices.DeleteFunc(offeringsOfPool(c.instanceTypes.Types(), s, disk, name), useless)
			if len(used) == 0 {
				return nil, fmt.Errorf("%s is what no virtual node offers: its cells would get no pod", name)
			}
			left := slices.DeleteFunc(used, c.shortages.Unavailable)
			if len(left) == 0 {
				return nil, fmt.Errorf("%s has no capacity now: %w", name, cloud.ErrCapacity)
			}
			return left, nil
		},
	}, nil
}

// offeringsOfPool are what the cells of a pool can be launched as, the cheapest first. What is reserved is
// left to cells whose pods are there.
func offeringsOfPool(sold []catalog.InstanceType, s config.StandbyCells, disk int64, name string) (all []offering.Offering) {
	for _, t := range sold {
		for _, o := range slices.SortedStableFunc(slices.Values(t.Offerings), catalog.PurchaseOption.ComparePrice) {
			if t.Name == s.InstanceType && o.Spot == s.Spot && o.Dedicated == s.Dedicated && o.Reservation == "" &&
				(s.Zone == "" || s.Zone == o.Zone) {
				one := offering.Of(&t, &o, disk)
				one.Reason = "standby pool " + name
				all = append(all, one)
			}
		}
	}
	return all
}
