package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// Else it removes ordinary nodes whose pods would fit on Kip's: docs/profiles.md tells users that it does not.
func TestKarpenterTakesNoNodeOfKipsForRoomOfPodsThatMayBurst(t *testing.T) {
	kip := corev1.Taint{Key: "virtual-kubelet.io/provider", Value: "kip", Effect: corev1.TaintEffectNoSchedule}
	burst := corev1.Taint{Key: "kip.elotl.co/burst", Effect: corev1.TaintEffectPreferNoSchedule}
	away := corev1.NodeSelectorRequirement{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{ // as Kip's webhook makes it
		Tolerations: []corev1.Toleration{{Key: kip.Key, Operator: corev1.TolerationOpEqual, Value: kip.Value, Effect: kip.Effect}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{away}}},
			},
		}},
	}}
	for says, c := range map[string]struct {
		taints scheduling.Taints
		room   bool
	}{"as its nodes are": {scheduling.Taints{kip, burst}, false}, "without the taint": {scheduling.Taints{kip}, true}} {
		if err := c.taints.ToleratesPod(pod); (err == nil) != c.room {
			t.Errorf("%s: %v", says, err)
		}
	}
	node := scheduling.NewLabelRequirements(map[string]string{"type": "virtual-kubelet"})
	if node.Compatible(scheduling.NewPodRequirements(pod)) == nil {
		t.Error("--preference-policy=Respect: its preference does not keep it away")
	}
	if err := node.Compatible(scheduling.NewStrictPodRequirements(pod)); err != nil {
		t.Errorf("--preference-policy=Ignore: %v", err)
	}
}
