package pods

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

const (
	// evictionRetry is the wait after an eviction that a disruption budget
	// forbade.
	evictionRetry = 5 * time.Second
	// evictionMargin is left of the notice when the pod's grace period ends: to
	// report its end.
	evictionMargin = 5 * time.Second
)

// rescuing moves pods away from instances that the cloud takes back.
type rescuing struct {
	evicting *evicting
	clock    clock.PassiveClock
	contacts *notes[contact]
}

// note notes when the cloud takes a cell back; zero for never.
func (s *rescuing) note(cell cells.Cell, at time.Time) {
	s.contacts.note(cell.Pod, func(c *contact) { c.interrupted = at })
}

// rescue moves a pod away if the cloud takes its instance back, and reports whether it does. marked is when the pod was marked as not
// ready.
func (s *rescuing) rescue(ctx context.Context, pod *corev1.Pod, marked time.Time) (again time.Duration, is bool, err error) {
	now, at := s.clock.Now(), s.contacts.get(pod.UID).interrupted
	if !at.After(now) {
		return 0, false, nil
	}
	// A disruption budget counts a pod as ready until its controller has seen that it is
	// not, and would let it go.
	if wait := marked.Add(evictionRetry).Sub(now); wait > 0 {
		return wait, true, nil
	}
	again, err = s.moveAway(ctx, pod, at)
	return again, true, err
}

// moveAway ends a pod in good order before the cloud takes its instance: its
// controller then makes another, which gets a cell at once. A pod without a
// controller would be lost that way; it runs to the end of the notice.
func (s *rescuing) moveAway(ctx context.Context, pod *corev1.Pod, at time.Time) (time.Duration, error) {
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
