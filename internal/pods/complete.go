package pods

import (
	"context"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// lastWords is how long Kip waits, after a kubelet has said that a pod ended, for it to say how the containers ended. That
// takes a moment, or longer on a busy machine.
const lastWords = 15 * time.Second

// completing releases the cells of pods that have ended.
type completing struct {
	cells  Cells
	grants Grants
	clock  clock.PassiveClock
	ended  *notes[time.Time] // when Kip first saw that each has ended
}

// Step releases the cell of a pod that has ended, once its kubelet has said how the pod's containers did.
func (s *completing) Step(_ context.Context, pod *corev1.Pod) (time.Duration, error) {
	if left := s.reportLeft(pod); left > 0 {
		return left, nil
	}
	why := "the pod has " + string(pod.Status.Phase)
	if keep := s.keep(pod); keep > 0 {
		s.cells.ReleaseFailed(pod.UID, why, keep, s.grants.MaxKeptCells)
	} else {
		s.cells.Release(pod.UID, why, true)
	}
	return 0, nil
}

// keep returns for how long the cell of a pod that has ended stays.
func (s *completing) keep(pod *corev1.Pod) time.Duration {
	if pod.Status.Phase != corev1.PodFailed {
		return 0
	}
	return s.grants.keepFailed(pod.Namespace, placement.KeepFailed(pod.Annotations))
}

// reportLeft returns how long the kubelet of a pod that has ended may still take to say how its containers
// did, negative once that is over; 0 if it has. A kubelet that ends a pod itself, for its deadline or
// as its machine goes down, may say so in two steps, of which the exit codes are the second.
func (s *completing) reportLeft(pod *corev1.Pod) time.Duration {
	if !slices.ContainsFunc(statuses(pod), func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) {
		return 0
	}
	if cell, has := s.cells.ForPod(pod.UID); !has || !cell.Live() || cell.Phase != apiv1.Bound {
		return 0 // no kubelet says more
	}
	now := s.clock.Now()
	seen := now
	s.ended.note(apiv1.Ref(pod), func(ended *time.Time) {
		if ended.IsZero() {
			*ended = now
		}
		seen = *ended
	})
	return seen.Add(lastWords).Sub(now)
}
