package sim

import (
	"cmp"
	"slices"
	"time"
)

// Charge is what the cloud asks for instances of one kind at one price. They are
// paid for from their launch to their end, but for the time when they were
// stopped.
type Charge struct {
	InstanceType string
	Zone         string
	Spot         bool
	PricePerHour float64 // dollars
	Instances    int     // ever launched
	Time         time.Duration
	Dollars      float64
}

type chargeKey struct {
	instanceType, zone string
	spot               bool
	price              float64
}

type charge struct {
	instances int
	time      time.Duration // of what no longer runs
}

// charges are what is asked for machines.
type charges struct {
	*base

	byKey map[chargeKey]*charge
}

func (c *charges) chargeFor(o offering, price float64) *charge {
	key := chargeKey{o.instanceType, o.zone, o.spot, price}
	if c.byKey[key] == nil {
		c.byKey[key] = &charge{}
	}
	return c.byKey[key]
}

// bills sums up charges.
type bills struct {
	*base
	charges  *charges
	machines *machines
}

// Bill returns what was spent until now, by type, zone, spot and price.
func (c *bills) Bill() []Charge {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	running := map[*charge]time.Duration{}
	for _, m := range c.machines.all {
		if !m.charged.IsZero() {
			running[m.charge] += now.Sub(m.charged)
		}
	}
	var bill []Charge
	for k, v := range c.charges.byKey {
		t := v.time + running[v]
		bill = append(bill, Charge{
			InstanceType: k.instanceType,
			Zone:         k.zone,
			Spot:         k.spot,
			PricePerHour: k.price,
			Instances:    v.instances,
			Time:         t,
			Dollars:      t.Hours() * k.price,
		})
	}
	slices.SortFunc(bill, func(a, b Charge) int {
		spot := 0
		if a.Spot != b.Spot {
			spot = 1
			if b.Spot {
				spot = -1
			}
		}
		return cmp.Or(cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone), spot, cmp.Compare(a.PricePerHour, b.PricePerHour))
	})
	return bill
}
