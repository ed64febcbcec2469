package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/clock"
)

// choosing chooses what is requested for pods.
type choosing struct {
	volumes Volumes // nil if no pod has any
	nodes   Nodes
	policy  *requestPolicy
	beside  *besides
	history *history
	clock   clock.PassiveClock
}

// Choose returns what is to be requested for a pod: what can be launched, best
// first, with room for the plugins of its volumes, where their disks are, not out
// of capacity, and granted to its namespace. Cells are requested by it, and people are
// told of it. It changes nothing. What of it the namespace can pay is known only when a
// cell is requested: package cells leaves out the rest then.
//
// The errors are those of Volumes and *PlacementError.
func (s *choosing) Choose(ctx context.Context, pod *corev1.Pod) (cells.Request, error) {
	c, err := s.choose(ctx, pod)
	return c.Request, err
}

// choice is what is to be requested for a pod.
type choice struct {
	cells.Request
	volumes volumes.Needs // of its volumes
	plugins []*corev1.Pod // of DaemonSets with node plugins of its volumes, without which it cannot start
	sets    []*corev1.Pod // of other DaemonSets that run beside the pod, and ask for room there
	leftOut []*corev1.Pod // those of them for which there is none
	without error         // why; nil where there is room for all
}

// choose is Choose. If no available machine has room for the DaemonSets beside the pod, choose leaves them out. It never leaves out node
// plugins of the pod's volumes.
func (s *choosing) choose(ctx context.Context, pod *corev1.Pod) (c choice, err error) {
	if c.volumes, err = s.volumeNeeds(ctx, pod); err != nil {
		return c, err
	}
	if err := s.beside.unserved(pod, c.volumes); err != nil {
		return c, err
	}
	c.plugins, c.sets = s.beside.sets(pod, c.volumes)
	c.Request, err = s.chooseWith(ctx, pod, c, c.sets)
	if len(c.sets) == 0 {
		return c, err
	}
	_, none := errors.AsType[*placement.UnplaceableError](err)
	_, refused := errors.AsType[*NotGrantedError](err)
	_, short := errors.AsType[*placement.NoCapacityError](err)
	switch {
	case none || refused:
		c.leftOut, c.without = c.sets, err
		c.Request, err = s.chooseWith(ctx, pod, c, nil)
	case short:
		return s.inShortage(ctx, pod, c, err)
	}
	return c, err
}

// inShortage chooses where machines with room for all DaemonSets beside a pod are out of capacity, for the reason in short. Each set
// delays the pod for as long as its terms let it, and is left out then.
func (s *choosing) inShortage(ctx context.Context, pod *corev1.Pod, c choice, short error) (choice, error) {
	delaying, until := s.beside.delaying(pod, c.sets, s.clock.Now())
	var err error
	if len(delaying) < len(c.sets) {
		c.leftOut, c.without = slices.DeleteFunc(slices.Clone(c.sets), func(p *corev1.Pod) bool { return slices.Contains(delaying, p) }), short
		if c.Request, err = s.chooseWith(ctx, pod, c, delaying); err == nil {
			return c, nil
		}
	}
	if len(delaying) == 0 {
		return c, err
	}
	if _, err := s.chooseWith(ctx, pod, c, nil); err != nil {
		return c, err // it waits for itself
	}
	waits := &PlacementError{Err: short, until: until}
	for _, set := range delaying {
		waits.sets = append(waits.sets, set.Namespace+"/"+apiv1.DaemonSetOf(set).Name)
	}
	return c, waits
}

// withoutSets chooses again without room for DaemonSets, after a budget refused the first choice. It returns false after any other
// error, and if nothing fits.
func (s *choosing) withoutSets(ctx context.Context, pod *corev1.Pod, c choice, refused error) (alone choice, is bool) {
	if _, over := errors.AsType[*cells.BudgetError](refused); !over || len(c.leftOut) == len(c.sets) {
		return c, false
	}
	less, none := s.chooseWith(ctx, pod, c, nil)
	if none != nil {
		return c, false
	}
	c.Request, c.leftOut, c.without = less, c.sets, refused
	return c, true
}

// chooseWith chooses what has room for a pod with its volumes and their plugins, which are in c, and pods of other DaemonSets.
func (s *choosing) chooseWith(ctx context.Context, pod *corev1.Pod, c choice, sets []*corev1.Pod) (cells.Request, error) {
	zone := zoneOf(c.volumes)
	asked, invalid := placement.ParseAnnotations(pod.Annotations)
	if invalid == nil { // else Nodes.Choose returns it
		if err := s.policy.allows(pod.Namespace, asked); err != nil {
			return cells.Request{}, &PlacementError{Err: err}
		}
	}
	lacked, placed := s.history.get(pod.UID).lacked, withSets(withVolumes(pod, c.volumes), c.plugins, sets)
	chosen, needed, err := s.fitting(ctx, placed, zone, &lacked)
	if err != nil {
		return cells.Request{}, &PlacementError{Zone: zone, Err: err}
	}
	r, err := s.policy.newRequest(pod, chosen, c.volumes)
	if err != nil {
		return cells.Request{}, &PlacementError{Err: err}
	}
	if r.Needs, r.HugePages = needed, hugePages(placed); invalid == nil {
		s.policy.apply(&r, asked)
	}
	if lacked.why != "" {
		r.Offerings = slices.Clone(r.Offerings)
		for i := range r.Offerings {
			r.Offerings[i].Reason += "; larger than before, since " + lacked.why
		}
	}
	return r, nil
}

// volumeNeeds returns what a pod's volumes need.
func (s *choosing) volumeNeeds(ctx context.Context, pod *corev1.Pod) (volumes.Needs, error) {
	if s.volumes == nil {
		return volumes.Needs{}, nil
	}
	return s.volumes.Needs(ctx, pod)
}

// withSets is a pod with what pods of DaemonSets beside it ask for.
func withSets(pod *corev1.Pod, sets ...[]*corev1.Pod) *corev1.Pod {
	for _, set := range slices.Concat(sets...) {
		pod = placement.With(pod, resourcehelper.PodRequests(set, resourcehelper.PodResourcesOptions{}))
	}
	return pod
}

// placed returns a pod with all that is to have room on its machine, and the zone of its disks, "" if it has none.
func (s *choosing) placed(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, string, error) {
	needs, err := s.volumeNeeds(ctx, pod)
	plugins, sets := s.beside.sets(pod, needs)
	return withSets(withVolumes(pod, needs), plugins, sets), zoneOf(needs), err
}

// fitting returns what can be launched for a pod, and what is needed of it. What an earlier machine lacked is asked for
// besides, where a type has it.
func (s *choosing) fitting(
	ctx context.Context, placed *corev1.Pod, zone string, lack *lacked,
) (placement.Chosen, catalog.Resources, error) {
	needed, larger := placement.Needs(placed), placed
	if !lack.None() {
		// Whatever has no more than what was too small lacks as much. It is believed once:
		// machines that all say so are not paid for one after the other.
		larger, needed = placement.With(placed, resourceList(lack.Resources)), catalog.Resources{}
	}
	chosen, err := s.nodes.Choose(ctx, larger, zone)
	if _, none := errors.AsType[*placement.UnplaceableError](err); none && !lack.None() {
		// No type is larger. One machine that lacks something is no reason to wait for ever.
		lack.why = ""
		chosen, err = s.nodes.Choose(ctx, placed, zone)
	}
	return chosen, needed, err
}

func resourceList(r catalog.Resources) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(r.MemoryBytes, resource.BinarySI),
	}
}

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
