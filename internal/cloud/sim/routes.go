package sim

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// routeTable is what the one of this cloud is called.
const routeTable = "main"

// routes are the networks that are routed to machines.
type routes struct {
	*base
	calls    *calls
	machines *machines

	byPrefix map[netip.Prefix]string // to instances, also such as have ended
}

// Route implements cloud.Router.
func (c *routes) Route(ctx context.Context, instance string, to []netip.Prefix) error {
	to = slices.Clone(to)
	err := c.calls.do(ctx, Call{Kind: KindRoute, IDs: []string{instance}}, func(now time.Time) error {
		if m := c.machines.find(instance, now); m == nil || m.State != cloud.Running {
			return fmt.Errorf("%w: IncorrectInstanceState: no instance %s runs", cloud.ErrNotFound, instance)
		}
		for _, prefix := range to {
			if there := c.byPrefix[prefix]; there != "" && there != instance {
				return &cloud.RouteTakenError{To: prefix, Table: routeTable, Target: there}
			}
			c.byPrefix[prefix] = instance
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("route to %s in %s: %w", instance, c.cfg.Name, err)
	}
	return nil
}

// Unroute implements cloud.Router.
func (c *routes) Unroute(ctx context.Context, instance string, _ []netip.Prefix) error {
	err := c.calls.do(ctx, Call{Kind: KindUnroute, IDs: []string{instance}}, func(time.Time) error {
		maps.DeleteFunc(c.byPrefix, func(_ netip.Prefix, to string) bool { return to == instance })
		return nil
	})
	if err != nil {
		return fmt.Errorf("take the routes to %s back in %s: %w", instance, c.cfg.Name, err)
	}
	return nil
}

// Routes returns which instance each prefix leads to, also one that has ended.
func (c *routes) Routes() map[netip.Prefix]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.byPrefix)
}
