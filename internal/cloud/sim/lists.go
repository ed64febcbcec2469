package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// lists shows machines, as late as they are shown.
type lists struct {
	*base
	calls    *calls
	machines *machines
}

// List implements cloud.Cloud. It is as late as Knobs.ListLag and
// Knobs.StaleLists make it.
func (c *lists) List(ctx context.Context, owner string) (cloud.Listing, error) {
	var list cloud.Listing
	err := c.calls.do(ctx, Call{Kind: KindList, Owner: owner}, func(now time.Time) error {
		if owner == "" {
			return fmt.Errorf("%w: owner is empty: want the value of tag %s", cloud.ErrRefused, cloud.TagOwner)
		}
		asOf := now
		if happens(c.rand("stale list", "", c.calls.counts[KindList]), c.knobs.StaleLists) {
			asOf = now.Add(-c.knobs.StaleBy)
		}
		c.machines.forget(now)
		list = cloud.Listing{Missing: slices.Clone(c.knobs.BlindZones), Silent: slices.Clone(c.knobs.BlindZones)}
		for _, m := range c.machines.all {
			if m.Tags[cloud.TagOwner] != owner || !list.Covers(m.Zone) {
				continue
			}
			if v := m.seen(asOf); v != nil && !v.gone {
				list.Instances = append(list.Instances, clone(v.instance))
			}
		}
		return nil
	})
	if err != nil {
		return cloud.Listing{}, fmt.Errorf("list the instances of %s in %s: %w", owner, c.cfg.Name, err)
	}
	return list, nil
}

// Describe implements cloud.Cloud. It is as late as Knobs.ListLag makes it, and
// knows a machine for good once a list has shown it.
func (c *lists) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	ids = slices.Clone(ids)
	var answer []cloud.Instance
	err := c.calls.do(ctx, Call{Kind: KindDescribe, IDs: ids}, func(now time.Time) error {
		answer = nil
		for _, id := range ids {
			answer = append(answer, c.describe(id, now))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("describe %v: %w", ids, err)
	}
	return answer, nil
}

func (c *lists) describe(id string, now time.Time) cloud.Instance {
	if c.machines.ended[id] {
		return cloud.Instance{ID: id, State: cloud.Gone}
	}
	m := c.machines.byID[id]
	switch {
	case m == nil || now.Before(m.known):
		return cloud.Instance{ID: id, State: cloud.Unknown}
	case slices.Contains(c.knobs.BlindZones, m.Zone):
		return cloud.Instance{ID: id}
	}
	switch v := m.seen(now); {
	case v == nil:
		return cloud.Instance{ID: id, State: cloud.Unknown}
	case v.gone:
		return cloud.Instance{ID: id, State: cloud.Gone}
	default:
		return clone(v.instance)
	}
}

// Shown takes a call, and returns all machines as lists show them at that time, those
// included that have ended: they are Gone.
func (c *lists) Shown(ctx context.Context, call Call) ([]Instance, error) {
	var all []Instance
	err := c.calls.do(ctx, call, func(now time.Time) error {
		c.machines.forget(now)
		all = nil
		for _, i := range c.machines.history {
			if c.machines.byID[i.ID] == nil {
				all = append(all, gone(i))
			}
		}
		for _, m := range c.machines.all {
			v := m.seen(now)
			if v == nil {
				continue
			}
			i := m.Instance
			i.Instance = v.instance
			if v.gone {
				i = gone(i)
			}
			all = append(all, i.clone())
		}
		return nil
	})
	return all, err
}

func gone(i Instance) Instance {
	i = i.clone()
	i.State = cloud.Gone
	return i
}
