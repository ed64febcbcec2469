package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A quantity of more digits than 18 is a pointer, and a sum is made in place: found by
// pods with odd values (test/oddpods, FUZZ_SEED=66).
func TestWhatAPodNeedsLeavesThePodAlone(t *testing.T) {
	huge := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("9223372036854775807")}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Resources:  &corev1.ResourceRequirements{Requests: huge},
		Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: huge.DeepCopy(), Limits: huge.DeepCopy()}}},
		Overhead:   huge.DeepCopy(),
	}}
	before := pod.DeepCopy()
	needOf(pod)
	if !equality.Semantic.DeepEqual(before, pod) {
		t.Errorf("the pod requests %v, and did %v", pod.Spec.Resources.Requests, before.Spec.Resources.Requests)
	}
}
