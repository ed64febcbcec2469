package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

func TestZoneOfTheVolumesHoldsBesideWhatThePodAsks(t *testing.T) {
	in := func(key string, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn,
			Values: values}}}
	}
	required := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
	zone := corev1.LabelTopologyZone
	for name, tc := range map[string]struct {
		spec    corev1.PodSpec
		zone    string
		a, b, c bool // whether the pod may run in the zones of that name
	}{
		"no volumes":                 {a: true, b: true, c: true},
		"a volume":                   {zone: "b", b: true},
		"a selector that fits":       {spec: corev1.PodSpec{NodeSelector: map[string]string{zone: "b"}}, zone: "b", b: true},
		"a selector elsewhere":       {spec: corev1.PodSpec{NodeSelector: map[string]string{zone: "a"}}, zone: "b"},
		"affinity to two":            {spec: corev1.PodSpec{Affinity: required(in(zone, "a", "b"))}, zone: "b", b: true},
		"affinity to one or other":   {spec: corev1.PodSpec{Affinity: required(in(zone, "a"), in(zone, "b"))}, zone: "b", b: true},
		"affinity elsewhere":         {spec: corev1.PodSpec{Affinity: required(in(zone, "a"), in(zone, "c"))}, zone: "b"},
		"an empty term":              {spec: corev1.PodSpec{Affinity: required(corev1.NodeSelectorTerm{}, in(zone, "a"))}, zone: "b"},
		"affinity to something else": {spec: corev1.PodSpec{Affinity: required(in("type", "virtual-kubelet"))}, zone: "b", b: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: tc.spec}
			before := pod.DeepCopy()
			c := constraintOf(&InZone(pod, tc.zone).Spec)
			for z, want := range map[string]bool{"a": tc.a, "b": tc.b, "c": tc.c} {
				if got := c.allows("amd64", z); got != want {
					t.Errorf("zone %s: %t, want %t", z, got, want)
				}
			}
			if !equality.Semantic.DeepEqual(pod, before) {
				t.Error("the pod was changed")
			}
		})
	}
}
