package cells

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// What is done aside about routes.
const (
	makesRoutes = "route"
	takesRoutes = "unroute"
)

// routed says that the cloud leads networks to the cell's instance, or may.
func (c *Controller) routed(cell *Cell) bool {
	return len(cell.Options.CloudRoutes) > 0 && cell.Instance != nil && c.cfg.Calls.Features().Router != nil
}

// routesOf are the networks that a cell's pod is to get what is for them.
func (c *Controller) routesOf(cell *Cell) []netip.Prefix {
	if !c.routed(cell) {
		return nil
	}
	return cell.Options.CloudRoutes
}

// route has the cloud lead its pod's networks to a ready cell, before its kubelet sees the pod.
// It returns true when that is so. It returns true as well when something else is to be done
// with the cell first.
func (c *Controller) route(ctx context.Context, e *entry) (ready bool, again time.Duration, err error) {
	cell := e.cell()
	if !c.routed(cell) || cell.Stopped || e.routed {
		return true, 0, nil
	}
	if stays, err := c.stays(ctx, e); !stays {
		return err == nil, 0, err
	}
	to, instance := cell.Options.CloudRoutes, cell.Instance.ID
	err = c.aside(ctx, e, makesRoutes, func(ctx context.Context) error {
		return c.cfg.Calls.Features().Router.Route(ctx, instance, to)
	})
	taken, isTaken := errors.AsType[*cloud.RouteTakenError](err)
	switch {
	case err == nil:
		e.routed, e.diskPolls, e.refused = true, 0, time.Time{}
		c.noteDisk(ctx, e, told{})
		return true, 0, nil
	case errors.Is(err, errUnderWay), ctx.Err() != nil:
		return false, 0, err
	case isTaken && c.letsGoOf(taken.Target):
		e.refused = time.Time{}
	case !isTaken && !cloud.Refused(err):
		e.refused = time.Time{}
		c.tellDisk(ctx, e, events.RouteFailed, fmt.Sprintf("The networks %s are not led to the pod's cell: %v; retrying", to, err))
		return false, 0, err
	case c.giveUp(e, CauseNoRoute, events.RouteFailed, fmt.Sprintf("the cloud did not lead the networks %s to it", to), err, heldTimeout):
		return false, diskPoll, nil
	}
	c.tellDisk(ctx, e, events.RouteFailed, fmt.Sprintf("The networks %s are not led to the pod's cell: %v; retrying", to, err))
	return false, c.nextDiskPoll(e), nil
}

// unrouteStray takes all routes back that lead to an instance of which no record tells. A cloud
// need not say what led to it once it has ended.
func (c *Controller) unrouteStray(ctx context.Context, instance string) error {
	router := c.cfg.Calls.Features().Router
	if router == nil {
		return nil
	}
	if err := router.Unroute(ctx, instance, nil); err != nil {
		return fmt.Errorf("take the routes to instance %s back, which ends: %w", instance, err)
	}
	return nil
}

// unroute takes the routes of a cell back whose instance ends or has ended. It returns nil once
// that is done. It is asked for twice: as soon as the instance ends, so that the pod's next cell
// need not wait, and when it has ended, since a call that was given up may have made one yet.
func (c *Controller) unroute(ctx context.Context, e *entry, done *bool) error {
	cell := e.cell()
	if *done || !c.routed(cell) {
		return nil
	}
	to, instance := cell.Options.CloudRoutes, cell.Instance.ID
	err := c.aside(ctx, e, takesRoutes, func(ctx context.Context) error {
		return c.cfg.Calls.Features().Router.Unroute(ctx, instance, to)
	})
	if err != nil {
		if !errors.Is(err, errUnderWay) {
			err = fmt.Errorf("take the routes of %s back that lead to instance %s: %w", to, instance, err)
		}
		return err
	}
	*done = true
	return nil
}
