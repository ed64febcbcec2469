package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// InZone returns the pod as it is to be placed when its volumes are in a zone: it
// asks for that zone beside all that it asks for itself. Of the result, only the
// spec is for use; the pod is not changed. "" is no zone.
func InZone(pod *corev1.Pod, zone string) *corev1.Pod {
	if zone == "" {
		return pod
	}
	in := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}
	placed := *pod // shallow, down to what is changed
	affinity, node := corev1.Affinity{}, corev1.NodeAffinity{}
	terms := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{in}}}
	if a := pod.Spec.Affinity; a != nil {
		affinity = *a
		if a.NodeAffinity != nil {
			node = *a.NodeAffinity
		}
	}
	if own := node.RequiredDuringSchedulingIgnoredDuringExecution; own != nil {
		// One of the terms must hold, with all of its requirements.
		terms = slices.Clone(own.NodeSelectorTerms)
		for i, t := range terms {
			if len(t.MatchExpressions)+len(t.MatchFields) > 0 { // else it matches no node
				terms[i].MatchExpressions = append(slices.Clone(t.MatchExpressions), in)
			}
		}
	}
	node.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
	affinity.NodeAffinity = &node
	placed.Spec.Affinity = &affinity
	return &placed
}
