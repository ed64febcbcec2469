package placement

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/elotl/kip/internal/catalog"
)

const resourceGPU = corev1.ResourceName("nvidia.com/gpu")

// otherDevices are the resources by which device plugins name what is no GPU of NVIDIA, and
// the kind of accelerator that each is; "" for one that no type of any catalogue has. Whatever
// is none of these is not counted.
var otherDevices = [...]struct {
	resource corev1.ResourceName
	kind     string
	each     map[string]int64 // how many of the resource one of a model is; nil for one
}{
	{"amd.com/gpu", "gpu", nil},
	{"aws.amazon.com/neuron", "neuron", nil},
	{"aws.amazon.com/neurondevice", "neuron", nil}, // its older name
	{"aws.amazon.com/neuroncore", "neuron", neuronCores},
	{"qualcomm.com/qaic", "inference", nil},
	{"google.com/tpu", "", nil},
	{"habana.ai/gaudi", "", nil},
}

// neuronCores are those of a chip, by the pages on the architecture of each in the AWS Neuron
// documentation: of a Trainium2 the logical ones, of two each, which is the default. Of a
// model that is not among them no core is promised.
var neuronCores = map[string]int64{
	"inferentia":  4,
	"inferentia2": 2,
	"trainium":    2,
	"trainium2":   4,
}

// devices are how many of each of otherDevices.
type devices [len(otherDevices)]int64

func (d devices) none() bool { return d == devices{} }

// within reports whether there are as many of each.
func (d devices) within(has devices) bool {
	for i := range d {
		if d[i] > has[i] {
			return false
		}
	}
	return true
}

// devicesOf are those of a type.
func devicesOf(t *catalog.InstanceType) (d devices) {
	for i, o := range otherDevices {
		if o.kind == "gpu" {
			d[i] = gpusOf(t, "amd")
		}
		for _, a := range t.Accelerators {
			switch {
			case a.Kind != o.kind:
			case o.each == nil:
				d[i] += a.Count
			default:
				d[i] += a.Count * o.each[strings.ToLower(a.Model)]
			}
		}
	}
	return d
}

// DeviceNames are the extended resources by which Devices counts, sorted.
func DeviceNames() []corev1.ResourceName {
	names := []corev1.ResourceName{resourceGPU}
	for _, o := range otherDevices {
		if o.kind != "" {
			names = append(names, o.resource)
		}
	}
	slices.Sort(names)
	return names
}

// Devices returns how many of each extended resource a machine of a type has; nil for none.
func Devices(t *catalog.InstanceType) map[corev1.ResourceName]int64 {
	if len(t.GPUs)+len(t.Accelerators) == 0 {
		return nil
	}
	has := map[corev1.ResourceName]int64{}
	if n := gpusOf(t, "nvidia"); n > 0 {
		has[resourceGPU] = n
	}
	for i, n := range devicesOf(t) {
		if n > 0 {
			has[otherDevices[i].resource] = n
		}
	}
	return has
}

// gpusOf is how many GPUs of a maker a type has.
func gpusOf(t *catalog.InstanceType, maker string) (n int64) {
	for _, g := range t.GPUs {
		if makerOf(g.Model) == maker {
			n += g.Count
		}
	}
	return n
}

// makerOf is who makes a model, by the names that clouds give AMD's: Radeon Pro V520, MI300X.
func makerOf(model string) string {
	if m := strings.ToLower(model); strings.Contains(m, "radeon") || strings.HasPrefix(m, "mi300") {
		return "amd"
	}
	return "nvidia"
}

// labelGPU is before the model of a GPU in the key of a label without a value.
const labelGPU = "node.elotl.co/gpu-"

// gpuLabels are the labels of that kind of a model, in the words of each cloud: T4 is t4,
// nvidia-t4 and nvidia-tesla-t4.
func gpuLabels(model string) []string {
	m := strings.ToLower(strings.ReplaceAll(model, " ", "-"))
	if makerOf(model) != "nvidia" {
		return []string{labelGPU + m}
	}
	m = strings.TrimPrefix(strings.TrimPrefix(m, "nvidia-"), "tesla-")
	return []string{labelGPU + m, labelGPU + "nvidia-" + m, labelGPU + "nvidia-tesla-" + m}
}

// selectedGPU is which model a pod's nodeSelector says. Where the virtual node itself has such
// a label, nobody has written an annotation.
func selectedGPU(selector map[string]string) (term labels.Requirements) {
	for key, value := range selector {
		if key == labelAccelerator {
			key = labelGPU + strings.ToLower(value)
		}
		if !strings.HasPrefix(key, labelGPU) {
			continue
		}
		if r, err := labels.NewRequirement(key, selection.Exists, nil); err == nil { // the API server has checked it
			term = append(term, *r)
		}
	}
	return term
}

// and returns the requirements with some more, that must hold whichever term does.
func (r Requirements) and(more labels.Requirements) Requirements {
	if len(more) == 0 {
		return r
	}
	if r == nil {
		return Requirements{more}
	}
	all := make(Requirements, len(r))
	for i, term := range r {
		all[i] = append(append(labels.Requirements{}, term...), more...)
	}
	return all
}
