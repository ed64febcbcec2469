package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// Cause is why an instance ended.
type Cause string

const (
	Terminated  Cause = "terminated"
	Interrupted Cause = "interrupted"
	Vanished    Cause = "vanished"
)

// Instance is an instance as it truly is, whatever List says.
type Instance struct {
	cloud.Instance
	// Token is that of its launch.
	Token string
	// On says that it runs: it has capacity and is paid for. One that is stopped,
	// or was when it was terminated, does not.
	On bool
	// Booted is when it has booted; zero when it has not since it was last
	// launched or started.
	Booted time.Time
	// Ended is when it was gone for good; zero while it exists, stopped or not.
	Ended time.Time
	Cause Cause
}

// Truth returns the instances that exist now, in the order of their launches.
func (c *Cloud) Truth() []Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.existing()
}

func (c *Cloud) existing() []Instance {
	var all []Instance
	for _, m := range c.machines {
		if m.Ended.IsZero() {
			all = append(all, m.Instance.clone())
		}
	}
	return all
}

// History returns all instances that ever were: those that have ended, in the
// order of their ends, and then those that exist.
func (c *Cloud) History() []Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Instance, 0, len(c.history))
	for _, i := range c.history {
		all = append(all, i.clone())
	}
	return append(all, c.existing()...)
}

func (i Instance) clone() Instance {
	i.Instance = clone(i.Instance)
	return i
}

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

func (c *Cloud) chargeFor(o offering, price float64) *charge {
	key := chargeKey{o.instanceType, o.zone, o.spot, price}
	if c.charges[key] == nil {
		c.charges[key] = &charge{}
	}
	return c.charges[key]
}

// Bill returns what was spent until now, by type, zone, spot and price.
func (c *Cloud) Bill() []Charge {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	running := map[*charge]time.Duration{}
	for _, m := range c.machines {
		if !m.charged.IsZero() {
			running[m.charge] += now.Sub(m.charged)
		}
	}
	var bill []Charge
	for k, v := range c.charges {
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

// CallKey is what calls are counted by.
type CallKey struct {
	Kind    Kind
	Outcome Outcome
}

// Calls returns how many calls of each kind ended in each way.
func (c *Cloud) Calls() map[CallKey]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}
