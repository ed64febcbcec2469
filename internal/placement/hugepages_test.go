package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/cloud/local/sizes"
)

func TestHugePagesAreOfTheMemoryOfTheMachine(t *testing.T) {
	p := placer(t, sizes.Types("amd64"), Config{ReservedMemoryBytes: 64 << 20})
	for what, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"none":                    {podOf("memory=960Mi"), "small"},
		"beside the pod's memory": {podOf("memory=512Mi", "hugepages-2Mi=448Mi"), "small"},
		"more than fit beside it": {podOf("memory=512Mi", "hugepages-2Mi=450Mi"), "medium"},
	} {
		all, err := p.Offerings(tc.pod, nil)
		if err != nil || all[0].InstanceType != tc.want {
			t.Errorf("%s: %s, %v, want %s", what, names(all), err, tc.want)
		}
	}
	arm := placer(t, sizes.Types("arm64"), Config{})
	if all, err := arm.Offerings(podOf("hugepages-64Ki=64Ki", "hugepages-32Mi=32Mi"), nil); err != nil || all[0].InstanceType != "nano" {
		t.Errorf("on arm64: %s, %v", names(all), err)
	}
}
