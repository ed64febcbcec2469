package pods

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

const (
	// silenceFresh is how long it counts that a cell was found silent; it is
	// said again every few seconds.
	silenceFresh = 15 * time.Second
	// evictionRetry is the wait after an eviction that a disruption budget
	// forbade.
	evictionRetry = 5 * time.Second
	// evictionMargin is left of the notice when the pod's grace period ends: to
	// report its end.
	evictionMargin = 5 * time.Second
)

// attending does for pods on bound cells what their kubelets cannot.
type attending struct {
	api      *apiServer
	observer Observer
	evicting *evicting
	aging    *aging
	moving   *movingBack
	waits    *waits
	events   cells.Recorder
	clock    clock.PassiveClock
	contacts *notes[contact]
}

// contact is what Kip knows of a pod's bound cell.
type contact struct {
	silent      time.Time // when it was last found silent; zero once that is dealt with
	found       time.Time // when it was last found silent
	marked      time.Time // when the pod was marked as not ready, since the cell is silent
	interrupted time.Time // when the cloud takes the instance; zero if it does not
}

// silent notes that a cell has not been heard of for a while.
func (s *attending) silent(cell cells.Cell) {
	s.contacts.note(cell.Pod, func(c *contact) { c.silent = s.clock.Now(); c.found = c.silent })
}

// interrupted notes when the cloud takes a cell back; zero for never.
func (s *attending) interrupted(cell cells.Cell, at time.Time) {
	s.contacts.note(cell.Pod, func(c *contact) { c.interrupted = at })
}

// attend does for a pod on a bound cell what its kubelet cannot.
func (s *attending) attend(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (time.Duration, error) {
	now := s.clock.Now()
	is := s.contacts.get(pod.UID)
	s.waits.foundCapacity(pod.UID)
	if pod.Status.Phase == corev1.PodRunning {
		s.observer.PodRunning(cell, now)
	}
	if !is.silent.IsZero() && now.Sub(is.silent) < silenceFresh {
		marked, err := s.markSilent(ctx, pod)
		if err != nil {
			return 0, err
		}
		// Once each time that it was found silent: its kubelet, when it is back,
		// says that the pod is ready, and must not be contradicted.
		if marked {
			is.marked = now
		}
		s.contacts.note(apiv1.Ref(pod), func(c *contact) { c.silent, c.marked = time.Time{}, is.marked })
	}
	if is.interrupted.After(now) {
		// A disruption budget counts a pod as ready until its controller has seen that it is
		// not, and would let it go.
		if wait := is.marked.Add(evictionRetry).Sub(now); wait > 0 {
			return wait, nil
		}
		return s.moveAway(ctx, pod, is.interrupted)
	}
	again, err := s.aging.replace(ctx, pod, cell)
	if err != nil {
		return again, err
	}
	back, err := s.moving.moveBack(ctx, pod, cell)
	return soonest(again, back), err
}

// soonest returns the sooner of two looks; 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// markSilent takes a pod that cannot be reached out of its Services, and reports whether it
// was in them. Its kubelet puts it back when it is heard again.
func (s *attending) markSilent(ctx context.Context, pod *corev1.Pod) (marked bool, err error) {
	if !isReady(pod) {
		return false, nil
	}
	said := events.NewCellSilent()
	changed := pod.DeepCopy()
	for i := range changed.Status.Conditions {
		if k := &changed.Status.Conditions[i]; k.Type == corev1.PodReady {
			k.Status, k.Reason, k.Message = corev1.ConditionFalse, said.Reason, said.Message
			k.LastTransitionTime = metav1.NewTime(s.clock.Now())
		}
	}
	_, err = s.api.pods(pod).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("mark pod %s as not ready: %w", apiv1.Ref(pod), err)
	}
	if err == nil {
		s.events.Event(apiv1.Ref(pod), said)
	}
	return true, nil
}

// moveAway ends a pod in good order before the cloud takes its instance: its
// controller then makes another, which gets a cell at once. A pod without a
// controller would be lost that way; it runs to the end of the notice.
func (s *attending) moveAway(ctx context.Context, pod *corev1.Pod, at time.Time) (time.Duration, error) {
	if metav1.GetControllerOf(pod) == nil {
		s.evicting.reportOnce(pod, interruption, interruptedStays, events.NewInterruptedPodStays(at))
		return 0, nil
	}
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = *g
	}
	left := at.Sub(s.clock.Now())
	grace = min(grace, max(1, int64((left-evictionMargin)/time.Second)))
	_, again, err := s.evicting.evict(ctx, pod, eviction{
		cause:   interruption,
		from:    "an instance that the cloud takes back",
		grace:   &grace,
		done:    events.NewInterruptedPodEvicted(at),
		blocked: func(why error) events.Event { return events.NewInterruptedPodBlocked(at, why) },
		retry:   min(left, evictionRetry),
	})
	return again, err
}
