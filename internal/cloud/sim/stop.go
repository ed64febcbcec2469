package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// stopping stops machines, and starts them again.
type stopping struct {
	*base
	calls    *calls
	machines *machines
	holdings *holdings
	courses  *courses
}

// Stop implements cloud.Stopper. As in EC2, only machines that are Running can
// be stopped, and a spot machine cannot; a refusal is for all that the call
// names.
func (c *stopping) Stop(ctx context.Context, ids ...string) cloud.Results {
	ids = slices.Clone(ids)
	err := c.calls.do(ctx, Call{Kind: KindStop, IDs: ids}, func(now time.Time) error {
		machines, err := c.machines.findAll(ids, now, func(m *machine) bool { return m.State == cloud.Stopping || m.State == cloud.Stopped },
			func(m *machine) error {
				if m.State != cloud.Running {
					return fmt.Errorf("%w: instance %s is %s", CodeState, m.ID, m.State)
				}
				if m.Spot {
					return fmt.Errorf("%w: instance %s is a spot instance, which cannot be stopped", CodeUnsupported, m.ID)
				}
				return nil
			})
		if err != nil {
			return err
		}
		if err := c.calls.takeResources(KindStop, len(ids), now); err != nil {
			return err
		}
		for _, m := range machines {
			c.stop(m, now)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("stop %v: %w", ids, err)
	}
	return cloud.Each(err, ids...)
}

func (c *stopping) stop(m *machine, now time.Time) {
	m.cancelEvents(true)
	m.State = cloud.Stopping
	c.courses.show(m, now)
	r := c.rand("stop", m.ID, m.starts)
	c.courses.at(m, now.Add(c.knobs.Stopping.draw(r)), true, func(now time.Time) {
		c.courses.halt(m, now)
		if !c.knobs.StoppedKeepsAddresses {
			c.holdings.freeAddress(m)
			m.ManagementIP, m.PodIP = netip.Addr{}, netip.Addr{}
		}
		m.State = cloud.Stopped
		c.courses.show(m, now)
	})
}

// Start implements cloud.Stopper. Without capacity, or quota, for all that the
// call names none is started.
func (c *stopping) Start(ctx context.Context, ids ...string) cloud.Results {
	ids = slices.Clone(ids)
	err := c.calls.do(ctx, Call{Kind: KindStart, IDs: ids}, func(now time.Time) error {
		machines, err := c.machines.findAll(ids, now, func(m *machine) bool { return m.State == cloud.Pending || m.State == cloud.Running },
			func(m *machine) error {
				if m.State != cloud.Stopped {
					return fmt.Errorf("%w: instance %s is %s", CodeState, m.ID, m.State)
				}
				return nil
			})
		if err != nil {
			return err
		}
		if err := c.calls.takeResources(KindStart, len(ids), now); err != nil {
			return err
		}
		if err := c.holdings.claim(machines); err != nil {
			return err
		}
		for _, m := range machines {
			c.courses.begin(m, now)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("start %v: %w", ids, err)
	}
	return cloud.Each(err, ids...)
}
