package placement

import corev1 "k8s.io/api/core/v1"

// Resources are what a pod asks of its machine, as Candidates counts it.
type Resources struct {
	MilliCPU, MemoryBytes, DiskBytes, GPUs int64
}

// ResourcesOf returns what a pod asks of its machine.
func ResourcesOf(pod *corev1.Pod) Resources {
	n := needOf(pod)
	return Resources{
		MilliCPU:    n.milliCPU,
		MemoryBytes: n.memory,
		DiskBytes:   n.disk,
		GPUs:        n.gpus,
	}
}

// LaunchType is how the candidate is bought.
func (c Candidate) LaunchType() LaunchType { return launchTypeOf(c.Offering) }
