package config

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestCapacityThatKipFindsOut(t *testing.T) {
	const cpu, disk, memory, pods = corev1.ResourceCPU, corev1.ResourceEphemeralStorage, corev1.ResourceMemory, corev1.ResourcePods
	for text, want := range map[string]struct {
		auto []corev1.ResourceName
		pods string
		gpus string
	}{
		"kubelet: {capacity: auto}":                                                             {[]corev1.ResourceName{cpu, disk, memory, pods}, "20", "0"},
		"kubelet: {capacity: {pods: auto, cpu: auto}}":                                          {[]corev1.ResourceName{cpu, pods}, "20", "0"},
		"kubelet: {capacity: {nvidia.com/gpu: auto}}":                                           {[]corev1.ResourceName{"nvidia.com/gpu"}, "20", "0"},
		"kubelet: {capacity: {nvidia.com/gpu: auto}}\nnodes: [{capacity: {nvidia.com/gpu: 1}}]": {nil, "20", "1"},
		"kubelet: {capacity: {nvidia.com/gpu: 4}}\nnodes: [{capacity: {nvidia.com/gpu: auto}}]": {
			[]corev1.ResourceName{"nvidia.com/gpu"}, "20", "4",
		},
		"kubelet: {capacity: {hugepages-2Mi: auto, hugepages-32Mi: 4Gi, nvidia.com/gpu: auto}}": {
			[]corev1.ResourceName{"hugepages-2Mi", "nvidia.com/gpu"}, "20", "0",
		},
		"kubelet: {capacity: {cpu: auto, pods: 7, nvidia.com/gpu: 2}}": {[]corev1.ResourceName{cpu}, "7", "2"},
		"nodes: [{capacity: auto}]":                                    {[]corev1.ResourceName{cpu, disk, memory, pods}, "20", "0"},
		"kubelet: {capacity: {pods: 9}}\nnodes: [{capacity: auto}]":    {[]corev1.ResourceName{cpu, disk, memory, pods}, "9", "0"},
		"kubelet: {capacity: auto}\nnodes: [{capacity: {pods: 5, nvidia.com/gpu: 1}}]": {
			[]corev1.ResourceName{cpu, disk, memory}, "5", "1",
		},
		"kubelet: {capacity: auto}\nnodes: [{capacity: {}}]": {[]corev1.ResourceName{cpu, disk, memory, pods}, "20", "0"},
		"kubelet: {capacity: {pods: 9}}\nnodes: [{}]":        {nil, "9", "0"},
		"kubelet: {capacity: &a auto}\nnodes: [{capacity: *a}]": {
			[]corev1.ResourceName{cpu, disk, memory, pods}, "20", "0",
		},
	} {
		c, _ := parsed(t, least+text)
		of := Node{}
		if len(c.Nodes) > 0 {
			of = c.Nodes[0]
		}
		list, auto := c.CapacityOf(of)
		gpus := list["nvidia.com/gpu"]
		if !slices.Equal(auto, want.auto) || list.Pods().String() != want.pods || gpus.String() != want.gpus {
			t.Errorf("%s: auto are %q, pods %s, GPUs %s, want %+v", text, auto, list.Pods(), gpus.String(), want)
		}
	}
}

func TestACapacityThatCannotBeIsRefusedWithTheChoices(t *testing.T) {
	for text, want := range map[string]string{
		"kubelet: {capacity: automatic}":   `kubelet.capacity: "automatic" is not valid: want auto, or names of resources and their quantities`,
		"kubelet: {capacity: {cpu: Auto}}": `kubelet.capacity.cpu: "Auto" is not valid: want auto, or a quantity such as 5Gi or 500m`,
		"kubelet: {capacity: {example.com/x: auto}}": `kubelet.capacity.example.com/x: "auto" is not valid: ` +
			`want a quantity such as 5Gi or 500m`,
		"kubelet: {capacity: {cpu: auto, cpu: 5}}": "kubelet.capacity.cpu: this key is there twice: first on line",
		"kubelet: {capacity: {cpu: 5, cpu: auto}}": "kubelet.capacity.cpu: this key is there twice: first on line",
		"kubelet: {capacity: auto, pods: 5}":       "kubelet.pods: kubelet.capacity is auto: want kubelet.capacity.pods in its place",
		"kubelet: {capacity: {hugepages-3Mi: 4Gi}}": `kubelet.capacity.hugepages-3Mi: no cell has huge pages of this size: ` +
			`want one of ["hugepages-64Ki" "hugepages-2Mi" "hugepages-32Mi"]`,
		"nodes: [{capacity: max}]":         `nodes[0].capacity: "max" is not valid: want auto, or`,
		"nodes: [{capacity: {pods: all}}]": `nodes[0].capacity.pods: "all" is not valid: want auto, or a quantity`,
	} {
		_, _, err := Parse("p.yaml", []byte(least+text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestNoHugePagesOfASizeThatNoCellHasAreWarnedOf(t *testing.T) {
	c, warnings := parsed(t, least+"kubelet: {capacity: {hugepages-16Gi: 0}}\nnodes: [{capacity: {hugepages-1Gi: 0}}]")
	var said []string
	for _, w := range warnings {
		if strings.HasPrefix(w.Problem, "no cell has huge pages of this size: want one of") {
			said = append(said, w.Key)
		}
	}
	slices.Sort(said)
	if !slices.Equal(said, []string{"kubelet.capacity.hugepages-16Gi", "nodes[0].capacity.hugepages-1Gi"}) {
		t.Errorf("warned of are %q: %v", said, warnings)
	}
	if list, _ := c.CapacityOf(c.Nodes[0]); len(list) == 0 {
		t.Error("the node has no capacity")
	}
}

func TestHugePagesThatCellsDoNotHaveAreWarnedOf(t *testing.T) {
	const capacity = "kubelet: {capacity: {hugepages-2Mi: auto, hugepages-32Mi: 4Gi}}\nnodes: [{capacity: {hugepages-2Mi: 2Gi}}]"
	_, warnings := parsed(t, least+capacity)
	var said []string
	for _, w := range warnings {
		if strings.Contains(w.Problem, "share the kernel of their host") {
			said = append(said, w.Key)
		}
	}
	want := []string{"kubelet.capacity.hugepages-2Mi", "kubelet.capacity.hugepages-32Mi", "nodes[0].capacity.hugepages-2Mi"}
	if !slices.Equal(said, want) {
		t.Errorf("warned of are %q, want %q: %v", said, want, warnings)
	}
	_, warnings = parsed(t, strings.Replace(least, "local: {}", "qemu: {image: /i.raw}", 1)+capacity)
	if len(warnings) > 0 {
		t.Errorf("on machines with kernels of their own: %v", warnings)
	}
}
