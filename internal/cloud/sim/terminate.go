package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// terminations terminates machines.
type terminations struct {
	*base
	calls    *calls
	machines *machines
	courses  *courses
}

// Terminate implements cloud.Cloud. The instances run on for Knobs.Termination.
func (c *terminations) Terminate(ctx context.Context, ids ...string) cloud.Results {
	ids = slices.Clone(ids)
	err := c.calls.do(ctx, Call{Kind: KindTerminate, IDs: ids}, func(now time.Time) error {
		if err := c.calls.takeResources(KindTerminate, len(ids), now); err != nil {
			return err
		}
		for _, id := range ids {
			if m := c.machines.find(id, now); m != nil {
				c.terminate(m, now)
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("terminate %v: %w", ids, err)
	}
	return cloud.Each(err, ids...)
}

func (c *terminations) terminate(m *machine, now time.Time) {
	if m.State == cloud.Terminating {
		return
	}
	m.terminations++
	r := c.rand("termination", m.ID, m.terminations)
	if happens(r, c.knobs.TerminationLost) {
		c.log.Debug("a termination comes to nothing", "instance", m.ID)
		return
	}
	m.cancelEvents(true)
	m.State = cloud.Terminating
	c.courses.show(m, now)
	c.courses.at(m, now.Add(c.knobs.Termination.draw(r)), false, func(now time.Time) { c.courses.end(m, now, Terminated) })
}
