package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// partKind is that of the one part that each machine has.
const partKind = "network interface"

// ownedResources are the network interfaces of machines.
type ownedResources struct {
	*base
	calls *calls

	all []*cloud.OwnedResource
}

// addPart gives a machine its network interface.
func (c *ownedResources) addPart(m *machine) {
	c.all = append(c.all, &cloud.OwnedResource{
		ID:       "eni-" + m.ID[len("i-"):],
		Kind:     partKind,
		Zone:     m.Zone,
		Instance: m.ID,
		Tags:     maps.Clone(m.Tags),
	})
}

// freeParts is the end of a machine: its parts go with it, but for the share of
// Knobs.OwnedLeft.
func (c *ownedResources) freeParts(m *machine) {
	left := happens(c.rand("part", m.ID, 0), c.knobs.OwnedLeft)
	c.all = slices.DeleteFunc(c.all, func(p *cloud.OwnedResource) bool {
		if p.Instance != m.ID {
			return false
		}
		p.Instance = ""
		return !left
	})
}

// OwnedNow returns the parts that exist.
func (c *ownedResources) OwnedNow() []cloud.OwnedResource {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.partsOf(func(*cloud.OwnedResource) bool { return true })
}

func (c *ownedResources) partsOf(wanted func(*cloud.OwnedResource) bool) (list []cloud.OwnedResource) {
	for _, p := range c.all {
		if wanted(p) {
			part := *p
			part.Tags = maps.Clone(part.Tags)
			list = append(list, part)
		}
	}
	return list
}

// ListOwned implements cloud.OwnedResources; it is never late.
func (c *ownedResources) ListOwned(ctx context.Context, owner string) (list []cloud.OwnedResource, err error) {
	err = c.calls.do(ctx, Call{Kind: KindListOwned, Owner: owner}, func(time.Time) error {
		if owner == "" {
			return fmt.Errorf("%w: owner is empty: want the value of tag %s", cloud.ErrRefused, cloud.TagOwner)
		}
		list = c.partsOf(func(p *cloud.OwnedResource) bool { return p.Tags[cloud.TagOwner] == owner })
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the parts of %s in %s: %w", owner, c.cfg.Name, err)
	}
	return list, nil
}

// DeleteOwned implements cloud.OwnedResources.
func (c *ownedResources) DeleteOwned(ctx context.Context, ids ...string) cloud.Results {
	ids = slices.Clone(ids)
	results := cloud.Each(nil, ids...)
	err := c.calls.do(ctx, Call{Kind: KindDeleteOwned, IDs: ids}, func(now time.Time) error {
		if err := c.calls.takeResources(KindDeleteOwned, len(ids), now); err != nil {
			return err
		}
		for n, id := range ids {
			c.all = slices.DeleteFunc(c.all, func(p *cloud.OwnedResource) bool {
				if p.ID == id && p.Instance != "" {
					results[n].Err = fmt.Errorf("%w: %s %s is in use by instance %s", cloud.ErrRefused, p.Kind, id, p.Instance)
				}
				return p.ID == id && p.Instance == ""
			})
		}
		return nil
	})
	if err != nil {
		return cloud.Each(fmt.Errorf("delete parts %v: %w", ids, err), ids...)
	}
	return results
}
