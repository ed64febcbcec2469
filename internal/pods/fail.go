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

// failure is why a pod is to fail.
type failure struct {
	event events.Event
	// lost reports whether the pod had a cell which was lost: its Job's podFailurePolicy can tell this from a failure of the pod's own.
	lost bool
	// unstarted reports whether no kubelet has had the pod, likewise.
	unstarted bool
}

// failing fails pods that are to have no cell any more.
type failing struct {
	api        *apiServer
	duplicates *duplicates
	events     cells.Recorder
	clock      clock.PassiveClock
	// maxAttempts is how many cells in a row may fail; 0 for no bound.
	maxAttempts int
}

// hopeless reports whether a pod is to have no cell any more, and says why.
func (s *failing) hopeless(pod *corev1.Pod, is asked) (why failure, hopeless bool) {
	switch {
	case is.ran && pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
		return failure{event: events.NewNotRestarted(), lost: true}, true
	case s.maxAttempts <= 0 || is.failures < s.maxAttempts:
		return failure{}, false
	case is.refusal != "":
		return failure{event: events.NewCellsRefused(is.failures, is.refusal), unstarted: !is.ran}, true
	}
	return failure{event: events.NewCellsNotReady(is.failures), unstarted: !is.ran}, true
}

// giveUp fails a pod without a cell as soon as nothing else may run it: who replaces it
// does so at once.
func (s *failing) giveUp(ctx context.Context, pod *corev1.Pod, why failure) (time.Duration, error) {
	if wait := s.duplicates.waitsForEnd(pod); wait > 0 {
		return wait, nil
	}
	if err := s.api.leads(ctx); err != nil {
		return 0, fmt.Errorf("fail pod %s: %w", apiv1.Ref(pod), err)
	}
	// The version that was read goes along: whoever wrote since is not overwritten.
	_, err := s.api.pods(pod).UpdateStatus(ctx, failed(pod, why, metav1.NewTime(s.clock.Now())), metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("fail pod %s: %w", apiv1.Ref(pod), err)
	}
	s.events.Event(apiv1.Ref(pod), why.event)
	return 0, nil
}

// failed returns a pod that no kubelet owns any more as one that has failed.
func failed(pod *corev1.Pod, why failure, now metav1.Time) *corev1.Pod {
	pod = pod.DeepCopy()
	s := &pod.Status
	s.Phase, s.Reason, s.Message = corev1.PodFailed, why.event.Reason, why.event.Message
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			s := &list[i]
			if s.State.Terminated != nil {
				continue
			}
			t := &corev1.ContainerStateTerminated{
				ExitCode:    137,
				Reason:      "ContainerStatusUnknown",
				Message:     why.event.Message,
				FinishedAt:  now,
				ContainerID: s.ContainerID,
			}
			if s.State.Running != nil {
				t.StartedAt = s.State.Running.StartedAt
			}
			s.State, s.Ready = corev1.ContainerState{Terminated: t}, false
		}
	}
	setNotReady(pod, now, "PodFailed", why.event.Message)
	for condition, is := range map[corev1.PodConditionType]bool{corev1.DisruptionTarget: why.lost, apiv1.NeverStarted: why.unstarted} {
		if is {
			setCondition(pod, corev1.PodCondition{
				Type:               condition,
				Status:             corev1.ConditionTrue,
				Reason:             why.event.Reason,
				Message:            why.event.Message,
				LastTransitionTime: now,
			})
		}
	}
	return pod
}
