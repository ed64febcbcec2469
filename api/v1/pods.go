package v1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NoMachine is the type of the condition of a DaemonSet's pod for which Kip launches no machine.
const NoMachine corev1.PodConditionType = "NoMachine"

// NeverStarted is the type of the condition of a pod that Kip has failed since it got no running cell, so that none of its containers
// has run: it waited for as long as it says at most, or its cells were refused or not ready. A Job's podFailurePolicy can match it.
const NeverStarted corev1.PodConditionType = "NeverStarted"

// DaemonSetOf returns the DaemonSet that controls a pod; nil if none does.
func DaemonSetOf(pod *corev1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "DaemonSet" || !strings.HasPrefix(owner.APIVersion, "apps/") {
		return nil
	}
	return owner
}

// WithoutMachine returns the condition that says why a DaemonSet's pod has no machine; nil for a pod
// that has one, or waits for one. The condition still counts after the DaemonSet has orphaned the pod. It does not
// count for a pod that anything else controls.
func WithoutMachine(pod *corev1.Pod) *corev1.PodCondition {
	s := &pod.Status
	if DaemonSetOf(pod) == nil && metav1.GetControllerOf(pod) != nil {
		return nil
	}
	if len(s.InitContainerStatuses)+len(s.ContainerStatuses)+len(s.EphemeralContainerStatuses) > 0 {
		return nil // a kubelet has had it
	}
	for i := range s.Conditions {
		if k := &s.Conditions[i]; k.Type == NoMachine && k.Status == corev1.ConditionTrue {
			return k
		}
	}
	return nil
}
