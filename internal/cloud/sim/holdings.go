package sim

import (
	"fmt"

	"github.com/elotl/kip/internal/cloud"
)

type holding struct {
	instances int
	vcpus     int64
}

// holdings are what machines take of capacity, quotas and addresses.
type holdings struct {
	*base

	held      map[offering]*holding
	addresses map[string]int // taken of each subnet
	plan      *addressPlan
}

func (c *holdings) hold(m *machine) {
	m.holds = true
	h := c.held[m.offering]
	if h == nil {
		h = &holding{}
		c.held[m.offering] = h
	}
	h.instances++
	h.vcpus += m.vcpus
}

func (c *holdings) release(m *machine) {
	if m.holds {
		m.holds = false
		h := c.held[m.offering]
		h.instances--
		h.vcpus -= m.vcpus
	}
}

func (c *holdings) takeAddress(m *machine) {
	m.slot = c.plan.take()
	c.addresses[m.Subnet]++
}

func (c *holdings) freeAddress(m *machine) {
	if m.slot != 0 {
		c.plan.giveBack(m.slot)
		c.addresses[m.Subnet]--
		m.slot = 0
	}
}

// checkQuotas says whether n more machines exceed a quota.
func (c *holdings) checkQuotas(o offering, n int, vcpus int64) error {
	for _, q := range c.knobs.Quotas {
		applies := func(o offering) bool {
			return matches(q.Types, o.instanceType) && (q.Family == "" || q.Family == c.offered.family[o.instanceType]) &&
				(q.Spot == nil || *q.Spot == o.spot)
		}
		if !applies(o) {
			continue
		}
		var sum holding
		for other, h := range c.held {
			if applies(other) {
				sum.instances += h.instances
				sum.vcpus += h.vcpus
			}
		}
		if more := int64(n) * vcpus; q.VCPUs > 0 && sum.vcpus+more > q.VCPUs {
			scope := q.scope()
			scope.ByCPU = scope.Says()
			return cloud.No(cloud.ErrQuota, scope, fmt.Errorf("%w: %q allows %d vCPUs; %d are in use and %d are requested",
				CodeVCPULimit, q.Name, q.VCPUs, sum.vcpus, more))
		}
		if q.Instances > 0 && sum.instances+n > q.Instances {
			return cloud.No(cloud.ErrQuota, q.scope(), fmt.Errorf("%w: %q allows %d instances; %d run and %d are requested",
				CodeInstanceLimit, q.Name, q.Instances, sum.instances, n))
		}
	}
	return nil
}

// scope is what an error says of the quota: nothing where it is for a pattern of
// types, which no cloud can name.
func (q Quota) scope() cloud.Scope {
	if q.Types != "" {
		return cloud.Scope{}
	}
	return cloud.Scope{Family: q.Family, Spot: clonePointer(q.Spot), Account: q.Family == ""}
}

// room returns for how many machines there is room, and what is short when that
// is none.
func (c *holdings) room(o offering, addresses bool) (int, error) {
	n, short := cloud.MaxLaunch, error(nil)
	bound := func(free int, scope cloud.Scope, err error) {
		if free < n {
			n, short = free, cloud.No(cloud.ErrCapacity, scope, err)
		}
	}
	for _, p := range c.knobs.Capacity {
		if !p.has(o) {
			continue
		}
		free := p.Instances
		for other, h := range c.held {
			if p.has(other) {
				free -= h.instances
			}
		}
		bound(free, cloud.Scope{
			InstanceType: p.InstanceType,
			Zone:         p.Zone,
			Subnet:       p.Subnet,
			Spot:         clonePointer(p.Spot),
			Pool:         p.Apart,
		},
			CodeInsufficientCapacity)
	}
	if addresses {
		if most, ok := c.knobs.SubnetAddresses[o.subnet]; ok {
			bound(most-c.addresses[o.subnet], cloud.Scope{Zone: o.zone, Subnet: o.subnet}, CodeNoAddress)
		}
		bound(c.plan.free(), cloud.Scope{Account: true}, CodeNoAddress)
	}
	return n, short
}

func clonePointer(b *bool) *bool {
	if b == nil {
		return nil
	}
	v := *b
	return &v
}

// claim says whether there is room for all of the stopped machines at once: it
// lets them take their places one after another, and takes these back.
func (c *holdings) claim(machines []*machine) error {
	for _, m := range machines {
		if err := c.checkQuotas(m.offering, 1, m.vcpus); err != nil {
			return err
		}
		needsAddress := m.slot == 0
		if n, short := c.room(m.offering, needsAddress); n <= 0 {
			return short
		}
		c.hold(m)
		defer c.release(m)
		if needsAddress {
			c.takeAddress(m)
			defer c.freeAddress(m)
		}
	}
	return nil
}
