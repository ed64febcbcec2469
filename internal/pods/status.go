package pods

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statuses returns those of all of a pod's containers.
func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	s := &pod.Status
	return slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
}

// started reports whether a kubelet has run containers of the pod.
func started(pod *corev1.Pod) bool {
	return slices.ContainsFunc(statuses(pod), func(s corev1.ContainerStatus) bool { return s.ContainerID != "" })
}

// setNotReady sets the conditions of a pod to those of one that is not ready.
func setNotReady(pod *corev1.Pod, now metav1.Time, reason, message string) {
	for i := range pod.Status.Conditions {
		if k := &pod.Status.Conditions[i]; k.Type == corev1.PodReady || k.Type == corev1.ContainersReady {
			k.Status, k.Reason, k.Message, k.LastTransitionTime = corev1.ConditionFalse, reason, message, now
		}
	}
}

// setCondition adds a condition, or replaces the one of its type.
func setCondition(pod *corev1.Pod, condition corev1.PodCondition) {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == condition.Type {
			pod.Status.Conditions[i] = condition
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, condition)
}
