package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// bounding fails pods that have waited for a running cell for as long as they say at most.
type bounding struct {
	cells      Cells
	choosing   *choosing
	duplicates *duplicates
	failing    *failing
	waits      *waits
	history    *history
	clock      clock.PassiveClock
}

// left returns how long a pod may still wait, zero or less if that is over; false if it may wait for ever, or has run. It counts from
// the pod's binding, by the API server, so that each Kip counts the same.
func (s *bounding) left(pod *corev1.Pod) (time.Duration, bool) {
	if pod.Annotations[placement.AnnotationMaxPending] == "" {
		return 0, false
	}
	asked, err := placement.ParseAnnotations(pod.Annotations)
	if err != nil || asked.MaxPending == 0 { // a bad one is reported where the pod is placed
		return 0, false
	}
	if started(pod) || s.history.get(pod.UID).ran {
		return 0, false
	}
	return boundAt(pod).Add(asked.MaxPending).Sub(s.clock.Now()), true
}

// boundAt is when a pod was bound to its node. One that no scheduler has bound was made there.
func boundAt(pod *corev1.Pod) time.Time {
	for _, k := range pod.Status.Conditions {
		if k.Type == corev1.PodScheduled && k.Status == corev1.ConditionTrue && !k.LastTransitionTime.IsZero() {
			return k.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// waitForCell bounds how long a pod waits for its cell, which boots, or ends. It returns after how long to look again.
func (s *bounding) waitForCell(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (time.Duration, error) {
	left, bounded := s.left(pod)
	if !bounded || !cell.StepTime(apiv1.StepBound).IsZero() {
		return 0, nil
	}
	if left = s.leftToBoot(left, cell); left > 0 {
		return left, nil
	}
	why := s.missed(ctx, pod, cell)
	if !s.cells.ReleaseUnbound(pod.UID, "the pod waited for as long as its annotation "+placement.AnnotationMaxPending+" allows") {
		return 0, nil // it runs now
	}
	return s.failing.giveUp(ctx, pod, why)
}

// leftToBoot adds to what is left of a pod's wait, if that is over, what its cell's machine may take to boot. The machine is paid, and a
// ReplicaSet makes a pod that failed again at once: with a bound below the time of a boot each pod would take a machine, and none would
// run.
func (s *bounding) leftToBoot(left time.Duration, cell cells.Cell) time.Duration {
	boot := cell.Offering().BootTimeout
	switch {
	case left > 0 || !cell.Live():
	case cell.Phase == apiv1.Launching: // the cloud may have launched it
		return left + boot
	case cell.Instance != nil:
		return max(left, cell.Launched().Add(boot).Sub(s.clock.Now()))
	}
	return left
}

// giveUp fails a pod that has no cell and has waited for too long.
func (s *bounding) giveUp(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	why := s.missed(ctx, pod, cells.Cell{})
	// It may run on a cell that this Kip does not know of, whatever is known of the pod.
	if wait := s.duplicates.waitsForStore(pod, true); wait > 0 {
		return wait, nil
	}
	return s.failing.giveUp(ctx, pod, why)
}

// missed returns why a pod had no running cell when its time was over, also if it has waited for something else since.
func (s *bounding) missed(ctx context.Context, pod *corev1.Pod, cell cells.Cell) failure {
	most := pod.Annotations[placement.AnnotationMaxPending]
	if m := s.waits.get(pod.UID).missed; m.most == most {
		return m.why
	}
	why := s.why(ctx, pod, cell)
	s.waits.note(apiv1.Ref(pod), func(w *waiting) { w.missed = missed{most, why} })
	return why
}

// why returns why a pod has no running cell. A Kip that has just begun to lead has not looked yet, and looks.
func (s *bounding) why(ctx context.Context, pod *corev1.Pod, cell cells.Cell) failure {
	reason, why := events.PendingTooLong, ""
	switch w := s.waits.get(pod.UID); {
	case cell.ID != "":
		why = fmt.Sprintf("its cell %s is %s", cell.ID, cell.Phase)
		if cell.Reason != "" {
			why += ": " + cell.Reason
		}
	case w.why != "":
		why = w.why
		if w.reason != "" {
			reason = w.reason
		}
	default:
		var none *PlacementError
		switch _, err := s.choosing.Choose(ctx, pod); {
		case errors.As(err, &none):
			_, event, _ := none.wait(1, nil, s.clock.Now())
			reason, why = event.Reason, err.Error()
		case err != nil:
			why = err.Error()
		default:
			why = "Kip has begun to lead since"
		}
	}
	return failure{event: events.NewPendingTooLong(reason, boundAt(pod), s.clock.Now(), why), unstarted: true}
}
