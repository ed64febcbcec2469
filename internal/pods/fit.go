package pods

import (
	"context"
	"errors"
	"slices"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// fitting finds what can be launched for a pod and for all that is to have room beside it. It makes the request of that.
type fitting struct {
	nodes   Nodes
	policy  *requestPolicy
	history *history
}

// fit returns what is to be requested for a pod, with its volumes and with pods of DaemonSets beside it. The error is a *PlacementError.
func (s *fitting) fit(ctx context.Context, pod *corev1.Pod, needs volumes.Needs, sets ...[]*corev1.Pod) (cells.Request, error) {
	zone := zoneOf(needs)
	asked, invalid := placement.ParseAnnotations(pod.Annotations)
	if invalid == nil { // else Nodes.Choose returns it
		if err := s.policy.allows(pod.Namespace, asked); err != nil {
			return cells.Request{}, &PlacementError{Err: err}
		}
	}
	lacked, placed := s.history.get(pod.UID).lacked, withSets(withVolumes(pod, needs), sets...)
	chosen, needed, err := s.choose(ctx, placed, zone, &lacked)
	if err != nil {
		return cells.Request{}, &PlacementError{Zone: zone, Err: err}
	}
	r, err := s.policy.newRequest(pod, chosen, needs)
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

// choose returns what can be launched for a pod, and what is needed of it. What an earlier machine lacked is asked for
// besides, where a type has it.
func (s *fitting) choose(
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

// withSets is a pod with what pods of DaemonSets beside it ask for.
func withSets(pod *corev1.Pod, sets ...[]*corev1.Pod) *corev1.Pod {
	for _, set := range slices.Concat(sets...) {
		pod = placement.With(pod, resourcehelper.PodRequests(set, resourcehelper.PodResourcesOptions{}))
	}
	return pod
}
