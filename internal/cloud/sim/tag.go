package sim

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// tagging writes tags.
type tagging struct {
	*base
	calls    *calls
	machines *machines
	courses  *courses
}

// Tag implements cloud.Tagger. Lists show the tags as late as any other change.
func (c *tagging) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	ids, tags := make([]string, len(taggings)), make([]map[string]string, len(taggings))
	for n, t := range taggings {
		ids[n], tags[n] = t.ID, maps.Clone(t.Tags)
	}
	results := cloud.Each(nil, ids...)
	err := c.calls.do(ctx, Call{Kind: KindTag, IDs: ids}, func(now time.Time) error {
		if err := c.calls.takeResources(KindTag, len(ids), now); err != nil {
			return err
		}
		for n, id := range ids {
			m := c.machines.find(id, now)
			if m == nil {
				results[n].Err = fmt.Errorf("%w: there is no instance %s: %w", CodeNotFound, id, cloud.ErrNotFound)
				continue
			}
			all := maps.Clone(m.Tags)
			maps.Copy(all, tags[n])
			m.Tags = all // what lists showed before keeps its own
			c.courses.show(m, now)
		}
		return nil
	})
	if err != nil {
		return cloud.Each(fmt.Errorf("tag %v: %w", ids, err), ids...)
	}
	return results
}
