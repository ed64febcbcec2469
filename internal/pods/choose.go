package pods

import (
	"context"
	"errors"
	"slices"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// choosing chooses what is requested for pods: with which pods of DaemonSets beside them.
type choosing struct {
	volumes Volumes // nil if no pod has any
	fitting *fitting
	beside  *besides
	clock   clock.PassiveClock
}

// Choose returns what is to be requested for a pod: what can be launched, best
// first, with room for the plugins of its volumes, where their disks are, not out
// of capacity, and granted to its namespace. Cells are requested by it, and people are
// told of it. It changes nothing. Package cells leaves out the offerings that the
// namespace cannot pay when a cell is requested: only then that is known.
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
	c.Request, err = s.fitting.fit(ctx, pod, c.volumes, c.plugins, c.sets)
	if len(c.sets) == 0 {
		return c, err
	}
	_, none := errors.AsType[*placement.UnplaceableError](err)
	_, refused := errors.AsType[*NotGrantedError](err)
	_, short := errors.AsType[*placement.NoCapacityError](err)
	switch {
	case none || refused:
		c.leftOut, c.without = c.sets, err
		c.Request, err = s.fitting.fit(ctx, pod, c.volumes, c.plugins, nil)
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
		if c.Request, err = s.fitting.fit(ctx, pod, c.volumes, c.plugins, delaying); err == nil {
			return c, nil
		}
	}
	if len(delaying) == 0 {
		return c, err
	}
	if _, err := s.fitting.fit(ctx, pod, c.volumes, c.plugins, nil); err != nil {
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
	less, none := s.fitting.fit(ctx, pod, c.volumes, c.plugins, nil)
	if none != nil {
		return c, false
	}
	c.Request, c.leftOut, c.without = less, c.sets, refused
	return c, true
}

// volumeNeeds returns what a pod's volumes need.
func (s *choosing) volumeNeeds(ctx context.Context, pod *corev1.Pod) (volumes.Needs, error) {
	if s.volumes == nil {
		return volumes.Needs{}, nil
	}
	return s.volumes.Needs(ctx, pod)
}

// placed returns a pod with all that is to have room on its machine, and the zone of its disks, "" if it has none.
func (s *choosing) placed(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, string, error) {
	needs, err := s.volumeNeeds(ctx, pod)
	plugins, sets := s.beside.sets(pod, needs)
	return withSets(withVolumes(pod, needs), plugins, sets), zoneOf(needs), err
}
