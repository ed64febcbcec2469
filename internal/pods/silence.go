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
)

// silences takes pods out of their Services whose cells are silent.
type silences struct {
	api      *apiServer
	events   cells.Recorder
	clock    clock.PassiveClock
	contacts *notes[contact]
}

// note notes that a cell has not been heard of for a while.
func (s *silences) note(cell cells.Cell) {
	s.contacts.note(cell.Pod, func(c *contact) { c.silent = s.clock.Now(); c.found = c.silent })
}

// mark marks a pod as not ready whose cell is silent. It returns when a pod was marked last, since its cell was silent.
func (s *silences) mark(ctx context.Context, pod *corev1.Pod) (marked time.Time, err error) {
	now, is := s.clock.Now(), s.contacts.get(pod.UID)
	if is.silent.IsZero() || now.Sub(is.silent) >= silenceFresh {
		return is.marked, nil
	}
	did, err := s.markSilent(ctx, pod)
	if err != nil {
		return is.marked, err
	}
	// Once each time that it was found silent: its kubelet, when it is back,
	// says that the pod is ready, and must not be contradicted.
	if did {
		is.marked = now
	}
	s.contacts.note(apiv1.Ref(pod), func(c *contact) { c.silent, c.marked = time.Time{}, is.marked })
	return is.marked, nil
}

// markSilent takes a pod that cannot be reached out of its Services, and reports whether it
// was in them. Its kubelet puts it back when it is heard again.
func (s *silences) markSilent(ctx context.Context, pod *corev1.Pod) (marked bool, err error) {
	if !isReady(pod) {
		return false, nil
	}
	event := events.NewCellSilent()
	changed := pod.DeepCopy()
	for i := range changed.Status.Conditions {
		if k := &changed.Status.Conditions[i]; k.Type == corev1.PodReady {
			k.Status, k.Reason, k.Message = corev1.ConditionFalse, event.Reason, event.Message
			k.LastTransitionTime = metav1.NewTime(s.clock.Now())
		}
	}
	_, err = s.api.pods(pod).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("mark pod %s as not ready: %w", apiv1.Ref(pod), err)
	}
	if err == nil {
		s.events.Event(apiv1.Ref(pod), event)
	}
	return true, nil
}
