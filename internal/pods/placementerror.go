package pods

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
)

// PlacementError reports why nothing can be launched for a pod. It wraps the error of
// placement, a *NotGrantedError or an *UnsupportedError.
type PlacementError struct {
	Zone string // where the disks of the pod are; "" if it has none, or it does not matter
	Err  error
	// sets are the DaemonSets whose room the pod waits for; at until it starts without them. There are none if the pod itself has no machine.
	sets  []string
	until time.Time
}

func (e *PlacementError) Error() string {
	if len(e.sets) > 0 {
		return fmt.Sprintf("%v, with room for DaemonSets %s beside it; without them it could start, and does at %s", e.Err,
			strings.Join(e.sets, ", "), e.until.UTC().Format(time.TimeOnly+" UTC"))
	}
	var annotation *placement.InvalidAnnotationError
	if e.Zone == "" || errors.As(e.Err, &annotation) { // which is wrong in any zone
		return e.Err.Error()
	}
	return fmt.Sprintf("%v; the disks of its volumes are in zone %s", e.Err, e.Zone)
}

func (e *PlacementError) Unwrap() error { return e.Err }

// wait returns why the pod waits, what its owner is told, and how long until another look after so
// many in a row.
func (e *PlacementError) wait(looks int, random backoff.Random, now time.Time) (because cause, event events.Event, wait time.Duration) {
	var annotation *placement.InvalidAnnotationError
	var capacity *placement.NoCapacityError
	var granted *NotGrantedError
	var unsupported *UnsupportedError
	var unplaceable *placement.UnplaceableError
	switch {
	case errors.As(e.Err, &granted):
		return otherCause, events.NewNotGranted(e), unplaceableRetry
	case errors.As(e.Err, &unsupported):
		return otherCause, events.NewAnnotationUnsupported(e), unplaceableRetry
	case errors.As(e.Err, &annotation):
		return otherCause, events.NewInvalidAnnotation(e), unplaceableRetry
	case len(e.sets) > 0: // its node has capacity for the pod
		return otherCause, events.NewPodOutOfCapacity(e), min(random.After(looks, firstBackoff, scarceRetry), e.until.Sub(now))
	case errors.As(e.Err, &capacity):
		return outOfCapacity, events.NewPodOutOfCapacity(e), random.After(looks, firstBackoff, scarceRetry)
	case errors.As(e.Err, &unplaceable):
		return otherCause, events.NewUnplaceable(e), unplaceableRetry
	}
	return otherCause, events.NewCellNotRequested(e), random.After(looks, firstBackoff, scarceRetry) // it could not be asked
}
