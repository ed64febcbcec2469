package cells

import (
	"maps"
	"slices"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells/ledger"
	"github.com/elotl/kip/internal/costs"
)

// Amount is what cells have cost.
type Amount = costs.Amount

// Cost is what cells of one kind have cost since Kip's state began.
type Cost = ledger.Cost

// Account is whom a pod's cost is put down to, besides its namespace and name.
type Account struct {
	// Owner is the kind and name of the pod's controller, such as Deployment/web; empty
	// for a pod without one.
	Owner string `json:"owner,omitempty"`
	// Labels are those of the pod that costs are kept by, when its cell was requested.
	Labels map[string]string `json:"labels,omitempty"`
}

// labels writes them in one order. Neither a key nor a value has a comma or "=".
func (a Account) labels() string {
	all := make([]string, 0, len(a.Labels))
	for _, key := range slices.Sorted(maps.Keys(a.Labels)) {
		all = append(all, key+"="+a.Labels[key])
	}
	return strings.Join(all, ",")
}

// cost returns what the cell has cost until now, by the price at which it was chosen.
func (c Cell) cost(now time.Time) Cost {
	offering, seconds := c.Offering(), c.BilledSeconds
	if from := c.launched(); !from.IsZero() && !c.Stopped {
		seconds += max(0, now.Sub(from).Seconds())
	}
	return Cost{
		InstanceType: offering.InstanceType,
		Spot:         offering.Spot,
		Dedicated:    offering.Dedicated,
		Seconds:      seconds,
		Dollars:      seconds / 3600 * offering.PricePerHour,
	}
}

// entries returns what the cell has cost in some seconds from a time on: of the pool until a
// pod was given it, and then of the pod, which has used so much of it.
func (c *Cell) entries(from time.Time, seconds float64, use costs.Use) []costs.Entry {
	if from.IsZero() || seconds <= 0 {
		return nil
	}
	offering, idle := c.Offering(), seconds
	if c.Pod.UID != "" {
		idle = min(seconds, max(0, c.StepTime(apiv1.StepGiven).Sub(from).Seconds()))
	}
	price := costs.Price{
		Machine: costs.Rate{PerHour: offering.PricePerHour, Unknown: offering.Unpriced},
		Disk:    costs.Rate{PerHour: offering.DiskPerHour, Unknown: offering.DiskUnpriced},
		Address: costs.Rate{PerHour: offering.AddressPerHour, Unknown: offering.AddressUnpriced},
	}
	var all []costs.Entry
	if idle > 0 {
		all = append(all, costs.Of(costs.Key{
			Namespace:    costs.NoPod,
			Owner:        "Standby/" + c.Standby,
			InstanceType: offering.InstanceType,
			LaunchType:   string(offering.CapacityType()),
		}, from, idle, price, costs.Use{Measured: idle, Idle: idle}))
	}
	if seconds -= idle; seconds > 0 {
		all = append(all, costs.Of(costs.Key{
			Namespace:    c.Pod.Namespace,
			Owner:        c.Account.Owner,
			Pod:          c.Pod.Name,
			Labels:       c.Account.labels(),
			InstanceType: offering.InstanceType,
			LaunchType:   string(offering.CapacityType()),
		}, from.Add(time.Duration(idle*float64(time.Second))), seconds, price, use))
	}
	return all
}

// running returns the entries of what the cell has cost since it was last launched or started.
func (c *Cell) running(now time.Time, use costs.Use) []costs.Entry {
	if c.Stopped {
		return nil
	}
	from := c.launched()
	return c.entries(from, now.Sub(from).Seconds(), use)
}

// ended returns the entries of a cell whose instance is stopped, or gone, by a change.
func ended(before, after *Cell, now time.Time, use costs.Use) []costs.Entry {
	switch {
	case after.Phase == apiv1.Gone:
		return after.running(now, use)
	case after.Stopped && !before.Stopped:
		return before.entries(before.launched(), after.BilledSeconds-before.BilledSeconds, use)
	}
	return nil
}

// Meter tells of a cell by its ID how much of its machine its pod has used since it was
// given it. It must not block.
type Meter interface {
	Use(cell string) costs.Use
}

// useOf returns what the pod of a cell has used, if that is measured.
func useOf(m Meter, cell *Cell) costs.Use {
	if m == nil {
		return costs.Use{}
	}
	return m.Use(cell.ID)
}
