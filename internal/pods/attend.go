package pods

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cells"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// attending does for pods on bound cells what their kubelets cannot.
type attending struct {
	observer    Observer
	waits       *waits
	silences    *silences
	rescuing    *rescuing
	disruptions []disrupts // in their order
	clock       clock.PassiveClock
}

// disrupts evicts a pod that could stay, if there is a reason to. It returns after how long to look again; 0 means when the pod changes.
type disrupts func(context.Context, *corev1.Pod, cells.Cell) (time.Duration, error)

// contact is what Kip knows of a pod's bound cell.
type contact struct {
	silent      time.Time // when it was last found silent; zero once that is dealt with
	found       time.Time // when it was last found silent
	marked      time.Time // when the pod was marked as not ready, since the cell is silent
	interrupted time.Time // when the cloud takes the instance; zero if it does not
}

// attend does for a pod on a bound cell what its kubelet cannot.
func (s *attending) attend(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (again time.Duration, err error) {
	s.waits.foundCapacity(pod.UID)
	if pod.Status.Phase == corev1.PodRunning {
		s.observer.PodRunning(cell, s.clock.Now())
	}
	marked, err := s.silences.mark(ctx, pod)
	if err != nil {
		return 0, err
	}
	if again, is, err := s.rescuing.rescue(ctx, pod, marked); is {
		return again, err
	}
	for _, disrupt := range s.disruptions {
		next, err := disrupt(ctx, pod, cell)
		if again = soonest(again, next); err != nil {
			return again, err
		}
	}
	return again, nil
}

// soonest returns the sooner of two looks; 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
