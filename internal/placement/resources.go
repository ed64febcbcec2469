package placement

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/catalog"
)

// Resources are what a pod asks of its machine, as Offerings counts it. GPUs are those of the
// kind of accelerator of which it asks for most.
type Resources struct {
	MilliCPU, MemoryBytes, DiskBytes, GPUs int64
}

// ResourcesOf returns what a pod asks of its machine.
func ResourcesOf(pod *corev1.Pod) Resources {
	n := needOf(pod)
	for _, count := range n.devices {
		n.gpus = max(n.gpus, count)
	}
	return Resources{
		MilliCPU:    n.milliCPU,
		MemoryBytes: n.allMemory(),
		DiskBytes:   n.disk,
		GPUs:        n.gpus,
	}
}

// NVIDIA returns how many GPUs of NVIDIA a pod asks for, of all its containers that run at
// the same time.
func NVIDIA(pod *corev1.Pod) int64 { return needOf(pod).gpus }

// Accelerators returns how many other accelerators a pod asks for, so, by their resource; nil for
// none.
func Accelerators(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	var all map[corev1.ResourceName]int64
	for i, count := range needOf(pod).devices {
		if count == 0 {
			continue
		}
		if all == nil {
			all = map[corev1.ResourceName]int64{}
		}
		all[otherDevices[i].resource] = count
	}
	return all
}

// Needs returns what a pod must find on its machine: nothing where the type is named, or
// the pod asks for nothing.
func Needs(pod *corev1.Pod) catalog.Resources {
	name := strings.TrimSpace(pod.Annotations[AnnotationInstanceType])
	if name != "" && !strings.Contains(name, "*") {
		return catalog.Resources{}
	}
	n := needOf(pod)
	return catalog.Resources{MilliCPU: n.milliCPU, MemoryBytes: n.allMemory()}
}
