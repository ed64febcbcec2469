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
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// standAgain is the least time between two writes of the status of a pod without a machine. While Kip's node is not
// Ready, the node controller marks its pods as not ready after each write. A kubelet contradicts it as often.
const standAgain = 10 * time.Second

// readyAgain is that time for a pod that becomes Ready with its copies: a rollout waits for it.
const readyAgain = time.Second

// standing has pods of DaemonSets stand without a machine.
type standing struct {
	grants     Grants
	beside     *besides
	duplicates *duplicates
	waits      *waits
	api        *apiServer
	events     cells.Recorder
	clock      clock.PassiveClock
	stood      *notes[time.Time] // when Kip last wrote the status of each as that of a pod without a machine
}

// noMachine reports whether a pod of a DaemonSet is to have no cell, and says why. A pod that has been told so stays as it is
// until it is deleted, whatever is granted later: its phase would have to go back.
func (s *standing) noMachine(pod *corev1.Pod) (why events.Event, is bool) {
	if why, runs := s.beside.runs(pod); runs {
		return why, true
	}
	set, k := apiv1.DaemonSetOf(pod), apiv1.WithoutMachine(pod)
	if k != nil && (k.Reason != events.BesidePods || set == nil) {
		return events.Event{Reason: k.Reason, Message: k.Message}, true
	}
	if set == nil {
		return events.Event{}, false
	}
	if why, refused := s.beside.refused(pod); refused {
		return why, true
	}
	if k != nil { // it stood for copies, and there are none any more
		return events.NewNoMachine(cut(set.Name, mostName), pod.Namespace, placement.AnnotationMachine, ""), true
	}
	asked, err := placement.ParseAnnotations(pod.Annotations)
	if _, asks := pod.Annotations[placement.AnnotationMachine]; asks && err != nil {
		return events.Event{}, false // it waits for a valid value
	}
	machine, grants := asked.Machine, s.grants
	if machine == nil && grants.DaemonSetMachines {
		return events.Event{}, false
	}
	yes := true
	refused := grants.Check(pod.Namespace, placement.Annotations{Machine: &yes})
	if machine != nil && *machine {
		if refused == nil {
			return events.Event{}, false
		}
		return events.NewMachineNotGranted(refused), true
	}
	key := ""
	if n, is := errors.AsType[*NotGrantedError](refused); is {
		key = n.Key
	}
	return events.NewNoMachine(cut(set.Name, mostName), pod.Namespace, placement.AnnotationMachine, key), true
}

// stand has a pod without a cell be Running and Ready, so that the rollout of its DaemonSet goes on. It writes nothing that the
// pod says already.
func (s *standing) stand(ctx context.Context, pod *corev1.Pod, why events.Event) (time.Duration, error) {
	first := apiv1.WithoutMachine(pod) == nil
	if first {
		if wait := s.duplicates.waitsForEnd(pod); wait > 0 {
			return wait, nil
		}
	}
	now := s.clock.Now()
	s.waits.end(apiv1.Ref(pod))
	changed, stance := pod.DeepCopy(), s.beside.stanceOf(pod, now)
	changed.Status = statusWithout(pod, why, stance, metav1.NewTime(now))
	if apiequality.Semantic.DeepEqual(changed.Status, pod.Status) {
		return stance.again, nil
	}
	pause := standAgain
	if ready := conditionOf(pod, corev1.PodReady); stance.unready == "" && ready != nil && ready.Reason == events.BesidePods &&
		ready.Status != corev1.ConditionTrue {
		pause = readyAgain
	}
	if wait := s.stood.get(pod.UID).Add(pause).Sub(now); wait > 0 {
		return wait, nil
	}
	if err := s.api.leads(ctx); err != nil {
		return 0, fmt.Errorf("write that pod %s has no machine: %w", apiv1.Ref(pod), err)
	}
	// Not compared: an API server may not have the field.
	changed.Status.ObservedGeneration = pod.Generation
	_, err := s.api.pods(pod).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return staleRetry, nil
	case err != nil:
		return 0, fmt.Errorf("write that pod %s has no machine: %w", apiv1.Ref(pod), err)
	}
	s.stood.note(apiv1.Ref(pod), func(stood *time.Time) { *stood = now })
	if first {
		s.events.Event(apiv1.Ref(pod), why)
	}
	return stance.again, nil
}

// statusWithout returns the status of a pod that is Running without a machine, and Ready as its stance says.
func statusWithout(pod *corev1.Pod, why events.Event, is stance, now metav1.Time) corev1.PodStatus {
	stands := pod.DeepCopy()
	s := &stands.Status
	s.Phase, s.Reason, s.Message = corev1.PodRunning, "", ""
	s.HostIP, s.HostIPs, s.PodIP, s.PodIPs = "", nil, "", nil
	s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses = nil, nil, nil
	if s.StartTime == nil {
		s.StartTime = &now
	}
	become := func(condition corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) {
		k := corev1.PodCondition{
			Type:               condition,
			Status:             status,
			Reason:             reason,
			Message:            message,
			LastTransitionTime: now,
		}
		for _, is := range s.Conditions {
			if is.Type == condition && is.Status == status {
				k.LastTransitionTime, k.LastProbeTime, k.ObservedGeneration = is.LastTransitionTime, is.LastProbeTime, is.ObservedGeneration
			}
		}
		setCondition(stands, k)
	}
	become(apiv1.NoMachine, corev1.ConditionTrue, why.Reason, why.Message)
	reason, ready, message := events.NoMachine, corev1.ConditionTrue, is.few
	if why.Reason == events.BesidePods {
		reason = events.BesidePods
	}
	if is.unready != "" {
		ready, message = corev1.ConditionFalse, is.unready
	}
	become(corev1.PodInitialized, corev1.ConditionTrue, reason, "")
	become(corev1.ContainersReady, ready, reason, message)
	become(corev1.PodReady, ready, reason, message)
	return *s
}
