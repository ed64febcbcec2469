package cells

import (
	"context"
	"errors"
	"fmt"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
)

// The operations on routes.
const (
	makesRoutes   = "route"
	removesRoutes = "unroute"
)

// routed reports whether the cloud routes networks to the cell's instance, or may.
func routed(c *pipe.Pipe, cell *Cell) bool {
	return len(cell.Options.CloudRoutes) > 0 && cell.Instance != nil && c.Optional().Router != nil
}

// routes has the cloud route the networks of pods to their cells.
type routes struct {
	table *table
	loop  *loop
	calls *pipe.Pipe
	waits *bindWaits
	cells perCell[routesState] // of their workers
}

var _ preparation = (*routes)(nil)

// routesState is how far that is.
type routesState struct {
	made    bool // the cloud routes them to the cell, for this process
	removed bool // they were removed when the cloud had accepted the cell's end
	gone    bool // they were again when it had ended
}

// prepare has the cloud route its pod's networks to a ready cell, before its kubelet sees the pod.
func (s *routes) prepare(ctx context.Context, e *entry) (progress, error) {
	cell := e.cell()
	if !routed(s.calls, cell) || s.cells.of(e).made {
		return done, nil
	}
	to, instance := cell.Options.CloudRoutes, cell.Instance.ID
	got, err := s.loop.async(ctx, e, makesRoutes, func(ctx context.Context) error {
		return s.calls.Optional().Router.Route(ctx, instance, to)
	})
	w := bindWait{
		by:       s,
		progress: waitFor(waitsOfOps[makesRoutes], diskPoll),
		longest:  longestDiskPoll,
		event:    events.NewRouteFailed(fmt.Sprint(to), err),
	}
	taken, isTaken := errors.AsType[*cloud.RouteTakenError](err)
	switch {
	case !got.isDone():
		return got, nil
	case err == nil:
		s.cells.of(e).made = true
		s.waits.over(ctx, e)
		return done, nil
	case ctx.Err() != nil:
		return progress{}, err
	case isTaken && s.table.letsGoOf(taken.Target):
	case !isTaken && !cloud.Refused(err):
		w.failure = err
	default:
		why := fmt.Sprintf("the cloud did not route %s to it in %s: %v", to, heldTimeout, err)
		w.timeout, w.end = heldTimeout, cellEnd{CauseNoRoute, why, events.NewRouteGivenUp(e.id, why)}
	}
	return s.waits.wait(ctx, e, w)
}

// waitsForLocked returns what keeps the call from being sent that makes, or removes, the routes of a cell. The caller holds table.mu.
func (s *routes) waitsForLocked(e *entry) string {
	switch e.async.waitsFor() {
	case makesRoutes:
		return s.calls.Waits(cloud.CallRoute)
	case removesRoutes:
		return s.calls.Waits(cloud.CallUnroute)
	}
	return ""
}

// unrouteOrphan takes all routes back that lead to an instance of which no record tells. A cloud
// need not say what led to it once it has ended.
func (s *routes) unrouteOrphan(ctx context.Context, instance string) error {
	router := s.calls.Optional().Router
	if router == nil {
		return nil
	}
	if err := router.Unroute(ctx, instance, nil); err != nil {
		return fmt.Errorf("take the routes to instance %s back, which ends: %w", instance, err)
	}
	return nil
}

// unrouteEnding takes the routes of a cell back whose instance ends, so that the pod's next cell need not wait.
func (s *routes) unrouteEnding(ctx context.Context, e *entry) (progress, error) {
	return s.unroute(ctx, e, &s.cells.of(e).removed)
}

// unrouteGone does so once more when the instance has ended, since a call that was given up may have made one yet.
func (s *routes) unrouteGone(ctx context.Context, e *entry) (progress, error) {
	return s.unroute(ctx, e, &s.cells.of(e).gone)
}

func (s *routes) unroute(ctx context.Context, e *entry, was *bool) (progress, error) {
	cell := e.cell()
	if *was || !routed(s.calls, cell) {
		return done, nil
	}
	to, instance := cell.Options.CloudRoutes, cell.Instance.ID
	got, err := s.loop.async(ctx, e, removesRoutes, func(ctx context.Context) error {
		return s.calls.Optional().Router.Unroute(ctx, instance, to)
	})
	if err != nil {
		return progress{}, fmt.Errorf("take the routes of %s back that lead to instance %s: %w", to, instance, err)
	}
	*was = got.isDone()
	return got, nil
}
