package placement

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/catalog"
)

// accelerated are types with GPUs and other accelerators, the cheapest first.
func accelerated() []catalog.InstanceType {
	var types []catalog.InstanceType
	for i, t := range []catalog.InstanceType{
		{Name: "plain"},
		{Name: "radeon", GPUs: []catalog.GPU{{Model: "Radeon Pro V520", Count: 2}}},
		{Name: "neuron", Accelerators: []catalog.Accelerator{{Maker: "AWS", Model: "Inferentia2", Kind: "neuron", Count: 1}}},
		{Name: "t4", GPUs: []catalog.GPU{{Model: "T4", Count: 1, MemoryBytes: 16 * gib}}},
		{Name: "gce-t4", GPUs: []catalog.GPU{{Model: "nvidia-tesla-t4", Count: 1}}},
		{Name: "l4", GPUs: []catalog.GPU{{Model: "L4", Count: 4, MemoryBytes: 22 * gib}}},
		{Name: "neurons", Accelerators: []catalog.Accelerator{{Maker: "AWS", Model: "Trainium", Kind: "neuron", Count: 16}}},
		{Name: "qualcomm", Accelerators: []catalog.Accelerator{{Maker: "Qualcomm", Model: "AI100", Kind: "inference", Count: 8}}},
		{Name: "mi", GPUs: []catalog.GPU{{Model: "MI300X", Count: 8}}},
	} {
		t.MilliCPU, t.MemoryBytes, t.Arch = 4000, 16*gib, "amd64"
		t.Offerings = []catalog.PurchaseOption{{Zone: "a", PricePerHour: float64(i + 1)}}
		types = append(types, t)
	}
	return types
}

// terms ask for one of some values of a label.
func terms(key string, values ...string) string {
	return `[{"matchExpressions":[{"key":"` + key + `","operator":"In","values":["` + strings.Join(values, `","`) + `"]}]}]`
}

func TestAPodGetsTheAcceleratorsThatItAsksFor(t *testing.T) {
	p := placer(t, accelerated(), Config{})
	for _, c := range []struct {
		what string
		pod  *corev1.Pod
		want string // the types in order, or a part of the error
	}{
		{"no accelerator", podOf("cpu=1"), "plain radeon neuron t4 gce-t4 l4 neurons qualcomm mi"},
		{"of NVIDIA", podOf("nvidia.com/gpu=1"), "t4 gce-t4 l4"},
		{"several", podOf("nvidia.com/gpu=2"), "l4"},
		{"too many", podOf("nvidia.com/gpu=5"), "needs nvidia.com/gpu 5: 9 types considered: 9 have too few GPUs (largest: l4 with 4)"},
		{"of AMD", podOf("amd.com/gpu=2"), "radeon mi"},
		{"more of AMD", podOf("amd.com/gpu=3"), "mi"},
		{"of both", podOf("amd.com/gpu=1", "nvidia.com/gpu=1"), "needs nvidia.com/gpu 1, amd.com/gpu 1"},
		{"neuron", podOf("aws.amazon.com/neuron=1"), "neuron neurons"},
		{"neuron, by its older name", podOf("aws.amazon.com/neurondevice=2"), "neurons"},
		{"as many cores as one device has", podOf("aws.amazon.com/neuroncore=2"), "neuron neurons"},
		{"more cores", podOf("aws.amazon.com/neuroncore=3"), "neurons"},
		{"more cores than there are", podOf("aws.amazon.com/neuroncore=33"), "too few of the accelerators"},
		{"inference", podOf("qualcomm.com/qaic=8"), "qualcomm"},
		{"what no cloud sells", podOf("google.com/tpu=1"), "9 have too few of the accelerators"},
		{"no accelerator at all", podOf("cpu=1", "example.com/licence=7"), "plain radeon neuron t4 gce-t4 l4 neurons qualcomm mi"},
		{"a type that is named", annotated(podOf("cpu=99", "nvidia.com/gpu=4", "example.com/licence=7"), AnnotationInstanceType, "l4"), "l4"},
		{"one with none", annotated(podOf("nvidia.com/gpu=2"), AnnotationInstanceType, "plain"),
			"needs nvidia.com/gpu 2: 1 type considered: 1 has too few GPUs (plain has 0)"},
		{"one with too few", annotated(podOf("nvidia.com/gpu=2"), AnnotationInstanceType, "t4"),
			"needs nvidia.com/gpu 2: 1 type considered: 1 has too few GPUs (t4 has 1)"},
		{"one with another's", annotated(podOf("nvidia.com/gpu=1"), AnnotationInstanceType, "mi"), "1 has too few GPUs (mi has 0)"},
		{"one with enough of AMD", annotated(podOf("cpu=99", "amd.com/gpu=2"), AnnotationInstanceType, "radeon"), "radeon"},
		{"one with too few of AMD", annotated(podOf("amd.com/gpu=3", "google.com/tpu=1"), AnnotationInstanceType, "radeon"),
			"1 has too few of the accelerators (radeon has 2 amd.com/gpu, 0 google.com/tpu)"},
		{"a pattern of types", annotated(podOf("amd.com/gpu=1"), AnnotationInstanceType, "m*"), "mi"},
		{"a model", selecting(podOf("nvidia.com/gpu=1"), "node.elotl.co/gpu-nvidia-tesla-t4", ""), "t4 gce-t4"},
		{"a model of AMD", selecting(podOf("amd.com/gpu=1"), "node.elotl.co/gpu-mi300x", ""), "mi"},
		{"a model of GKE", selecting(podOf("nvidia.com/gpu=1"), "cloud.google.com/gke-accelerator", "nvidia-tesla-t4"), "t4 gce-t4"},
		{"what its node says of itself", selecting(podOf("nvidia.com/gpu=1"), "nvidia.com/gpu.product", "Tesla-T4"), "t4 gce-t4 l4"},
		{"a product", annotated(podOf("nvidia.com/gpu=1"), AnnotationRequirements, terms("nvidia.com/gpu.product", "L4")), "l4"},
		{"a name of Karpenter", annotated(podOf(), AnnotationRequirements, terms("karpenter.k8s.aws/instance-gpu-name", "t4")), "t4"},
		{"memory", annotated(podOf("nvidia.com/gpu=1"), AnnotationRequirements, terms("nvidia.com/gpu.memory", "22528")), "l4"},
		{"a model by the webhook", annotated(podOf("cpu=1"), AnnotationRequirements, terms("node.elotl.co/gpu-l4", "")), "l4"},
		{"a model and a term", annotated(selecting(podOf("nvidia.com/gpu=1"), "node.elotl.co/gpu-t4", ""), AnnotationRequirements,
			terms("nvidia.com/gpu.memory", "16384", "22528")), "t4"},
		{"a model that nobody has", selecting(podOf("nvidia.com/gpu=1"), "node.elotl.co/gpu-k80", ""), "needs nvidia.com/gpu 1"},
	} {
		got, err := p.Offerings(c.pod, nil)
		var names []string
		for _, candidate := range got {
			names = append(names, candidate.InstanceType)
		}
		var none *UnplaceableError
		wrong := err == nil && strings.Join(names, " ") != c.want
		if err != nil && (!errors.As(err, &none) || !strings.Contains(err.Error(), c.want)) || wrong {
			t.Errorf("%s: %v, %v; want %s", c.what, names, err, c.want)
		}
		if none != nil {
			sum := 0
			for _, r := range none.Rejections {
				sum += r.Types
			}
			if want := len(accelerated()); sum != none.Considered || sum != want && !(sum == 1 && c.pod.Annotations[AnnotationInstanceType] != "") {
				t.Errorf("%s: %d types are ruled out: %v", c.what, sum, none)
			}
		}
	}
}
