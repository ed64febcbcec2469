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

var _ cloud.Parts = (*Cloud)(nil)

// parts are the network interfaces of machines.
type parts struct {
	*base
	calls *calls

	all []*cloud.Part
}

// addPart gives a machine its network interface.
func (c *parts) addPart(m *machine) {
	c.all = append(c.all, &cloud.Part{
		ID:       "eni-" + m.ID[len("i-"):],
		Kind:     partKind,
		Zone:     m.Zone,
		Instance: m.ID,
		Tags:     maps.Clone(m.Tags),
	})
}

// freeParts is the end of a machine: its parts go with it, but for the share of
// Knobs.PartsLeft.
func (c *parts) freeParts(m *machine) {
	left := happens(c.rand("part", m.ID, 0), c.knobs.PartsLeft)
	c.all = slices.DeleteFunc(c.all, func(p *cloud.Part) bool {
		if p.Instance != m.ID {
			return false
		}
		p.Instance = ""
		return !left
	})
}

// PartsNow returns the parts that exist.
func (c *parts) PartsNow() []cloud.Part {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.partsOf(func(*cloud.Part) bool { return true })
}

func (c *parts) partsOf(wanted func(*cloud.Part) bool) (list []cloud.Part) {
	for _, p := range c.all {
		if wanted(p) {
			part := *p
			part.Tags = maps.Clone(part.Tags)
			list = append(list, part)
		}
	}
	return list
}

// ListParts implements cloud.Parts; it is never late.
func (c *parts) ListParts(ctx context.Context, owner string) (list []cloud.Part, err error) {
	err = c.calls.do(ctx, Call{Kind: KindListParts, Owner: owner}, func(time.Time) error {
		if owner == "" {
			return fmt.Errorf("%w: owner is empty: want the value of tag %s", cloud.ErrRefused, cloud.TagOwner)
		}
		list = c.partsOf(func(p *cloud.Part) bool { return p.Tags[cloud.TagOwner] == owner })
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the parts of %s in %s: %w", owner, c.cfg.Name, err)
	}
	return list, nil
}

// DeleteParts implements cloud.Parts.
func (c *parts) DeleteParts(ctx context.Context, ids ...string) cloud.Results {
	ids = slices.Clone(ids)
	results := cloud.Each(nil, ids...)
	err := c.calls.do(ctx, Call{Kind: KindDeleteParts, IDs: ids}, func(now time.Time) error {
		if err := c.calls.takeResources(KindDeleteParts, len(ids), now); err != nil {
			return err
		}
		for n, id := range ids {
			c.all = slices.DeleteFunc(c.all, func(p *cloud.Part) bool {
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
