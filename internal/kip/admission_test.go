package kip

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/placement"
)

func TestTheSchedulerDecidesAboutLabelsThatNodesHave(t *testing.T) {
	const family = "karpenter.k8s.aws/instance-family"
	for says, c := range map[string]struct {
		cfg  config.Config
		want map[string][]string
	}{
		"one node": {config.Config{}, map[string][]string{corev1.LabelInstanceTypeStable: {"kip"}}},
		"one that is labelled": {config.Config{Kubelet: config.Kubelet{Labels: map[string]string{
			family: "c5", corev1.LabelInstanceTypeStable: "x",
		}}}, map[string][]string{family: {"c5"}, corev1.LabelInstanceTypeStable: {"x"}}},
		"spot beside others": {config.Config{Nodes: []config.Node{
			{LaunchTypes: []string{config.Spot}, Labels: map[string]string{family: "m5"}}, {LaunchTypes: []string{config.OnDemand, config.Spot}}, {},
		}}, map[string][]string{placement.LabelCapacityType: {"spot"}, family: {"m5"}, corev1.LabelInstanceTypeStable: {"kip"}}},
		"auto": {config.Config{AutoNodes: true}, map[string][]string{placement.LabelCapacityType: {"on-demand", "spot"},
			corev1.LabelInstanceTypeStable: {"kip"}}},
	} {
		rules := admissionRules(&c.cfg, "me", []admission.Node{{Name: "kip-0"}, {Name: "kip-0-1"}}, nil)
		c.want[corev1.LabelHostname], c.want[apiv1.LabelController] = []string{"kip-0", "kip-0-1"}, []string{"me"}
		for _, key := range []string{corev1.LabelHostname, apiv1.LabelController,
			placement.LabelCapacityType, family, corev1.LabelInstanceTypeStable} {
			if got := rules.NodeLabels[key]; !slices.Equal(got, c.want[key]) {
				t.Errorf("%s: nodes have %s of %q, want %q", says, key, got, c.want[key])
			}
		}
	}
}
