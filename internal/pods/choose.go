package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
)

// Choose returns what is to be requested for a pod: what can be launched, best
// first, with room for the plugins of its volumes, where their disks are, and not out
// of capacity. This is the only choice: cells are requested by it, and people are
// told of it. It changes nothing.
//
// The errors are those of Config.Volumes and *PlacementError.
func (c *Controller) Choose(ctx context.Context, pod *corev1.Pod) (cells.Request, error) {
	var needs volumes.Needs
	if c.cfg.Volumes != nil {
		var err error
		if needs, err = c.cfg.Volumes(ctx, pod); err != nil {
			return cells.Request{}, err
		}
	}
	zone := zoneOf(needs)
	asked, invalid := placement.ParseAnnotations(pod.Annotations)
	if invalid == nil { // else Place says so
		if err := c.cfg.Grants.check(pod.Namespace, asked); err != nil {
			return cells.Request{}, &PlacementError{Err: err}
		}
	}
	offers, err := c.cfg.Place(withPlugins(pod, needs), zone)
	if err != nil {
		return cells.Request{}, &PlacementError{Zone: zone, Err: err}
	}
	if offers, err = c.cfg.Grants.affordable(pod.Namespace, offers); err != nil {
		return cells.Request{}, &PlacementError{Err: err}
	}
	r := cells.Request{
		Pod:     apiv1.Ref(pod),
		Node:    pod.Spec.NodeName,
		Created: pod.CreationTimestamp.Time,
		Offers:  offers,
		Disks:   disksOf(needs),
		Plugins: pluginsOf(needs),
	}
	if invalid == nil {
		r.Special = special(asked)
		r.Options, r.Offers = resolve(c.cfg.Options, asked), withDisk(offers, asked)
		if t := asked.HealthyTimeout; t != nil {
			after := t.After // 0 when never
			r.HealthyTimeout = &after
		}
	}
	return r, nil
}

// PlacementError says why nothing can be launched for a pod. It wraps the error of
// placement, or a *NotGrantedError.
type PlacementError struct {
	Zone string // where the disks of the pod are; "" if it has none, or it does not matter
	Err  error
}

func (e *PlacementError) Error() string {
	var annotation *placement.InvalidAnnotationError
	if e.Zone == "" || errors.As(e.Err, &annotation) { // which is wrong in any zone
		return e.Err.Error()
	}
	return fmt.Sprintf("%v; the disks of its volumes are in zone %s", e.Err, e.Zone)
}

func (e *PlacementError) Unwrap() error { return e.Err }

// wait is the reason that the pod's owner is told, and how long until another look.
func (e *PlacementError) wait(attempt int) (reason string, wait time.Duration) {
	var annotation *placement.InvalidAnnotationError
	var capacity *placement.NoCapacityError
	var granted *NotGrantedError
	switch {
	case errors.As(e.Err, &granted):
		return events.NotGranted, unplaceableRetry
	case errors.As(e.Err, &annotation):
		return events.InvalidAnnotation, unplaceableRetry
	case errors.As(e.Err, &capacity):
		return events.NoCapacity, backoffOf(attempt)
	}
	return events.Unplaceable, unplaceableRetry
}
