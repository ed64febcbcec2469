package pods

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// overdue is how long after its grace period a deleted pod may still exist
// before its cell is terminated under it: time enough for a kubelet that
// kills what does not stop, and for a tunnel that is being mended.
const overdue = time.Minute

// deleting sees deleted pods out.
type deleting struct {
	cells      Cells
	api        *apiServer
	duplicates *duplicates
	events     cells.Recorder
	clock      clock.PassiveClock
	graces     *notes[grace]
	beside     *besides
}

// grace is the end of a deleted pod's grace period.
type grace struct {
	ends time.Time // by the API server's clock
	seen time.Time // by Kip's clock, when Kip first saw that end
}

// Step sees a deleted pod out. Where a kubelet has it, the kubelet does; else Kip.
func (s *deleting) Step(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	if cell, has := s.cells.ForPod(pod.UID); has && cell.Kept() && watches.Ended(pod) {
		return 0, s.remove(ctx, pod) // its kubelet is not told, since it would remove what people want to look at
	}
	if !s.cells.ReleaseUnbound(pod.UID, "the pod was deleted before it ran") {
		// The kubelet ends the pod and deletes it.
		if left := s.graceLeft(pod) + overdue; left > 0 {
			return left, nil
		}
		late := events.NewDeletionOverdue(overdue)
		s.events.Event(apiv1.Ref(pod), late)
		s.cells.Release(pod.UID, late.Message, false)
		return 0, nil // the cell wakes the pod when it is gone
	}
	// A cell that was bound may run the pod, also if nothing was heard of that.
	if cell, has := s.cells.ForPod(pod.UID); has && (started(pod) || !cell.StepTime(apiv1.StepBound).IsZero()) {
		return 0, nil // a lost or overdue cell: wait until the cloud has confirmed its end
	}
	if apiv1.WithoutMachine(pod) == nil { // nothing has ever run one
		if wait := s.duplicates.waitsForEnd(pod); wait > 0 {
			return wait, nil
		}
	}
	if wait := s.beside.ending(pod, s.graceLeft(pod)+overdue); wait > 0 {
		return wait, nil
	}
	return 0, s.remove(ctx, pod)
}

// remove deletes a pod that no cell runs from the API server.
func (s *deleting) remove(ctx context.Context, pod *corev1.Pod) error {
	if err := s.api.leads(ctx); err != nil {
		return fmt.Errorf("delete pod %s, which no cell runs: %w", apiv1.Ref(pod), err)
	}
	zero := int64(0)
	err := s.api.pods(pod).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s, which no cell runs: %w", apiv1.Ref(pod), err)
	}
	return nil
}

// graceLeft returns how much of its grace period a deleted pod has left, negative once it is
// over. The deletion timestamp is by the API server's clock, which need not be Kip's:
// what is counted is how long Kip has seen it.
func (s *deleting) graceLeft(pod *corev1.Pod) time.Duration {
	now := s.clock.Now()
	seen := now
	s.graces.note(apiv1.Ref(pod), func(g *grace) {
		if !g.ends.Equal(pod.DeletionTimestamp.Time) {
			g.ends, g.seen = pod.DeletionTimestamp.Time, now
		}
		seen = g.seen
	})
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		grace = *g
	}
	return seen.Add(time.Duration(grace) * time.Second).Sub(now)
}
