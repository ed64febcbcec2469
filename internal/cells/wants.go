package cells

import (
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// Wants are what a pod wants of its cell, besides the room that it needs. A Request has them, and so has the Cell that the pod gets,
// whether that is launched for it or stood by: they are copied as a whole. So a new one is a field here, and what is done for it.
type Wants struct {
	// Disks are those of the pod's volumes, all in the zone of each offering.
	Disks []Disk `json:"disks,omitempty"`
	// Plugins are those of the CSI drivers of the pod's volumes.
	Plugins []Plugin `json:"plugins,omitempty"`
	// Kernel is what the pod asks of its machine's kernel; nil for nothing.
	Kernel *KernelSettings `json:"kernel,omitempty"`
	// UnsafeSysctls are those that the pod sets in its own namespaces and may set, as in agentapi.Config.
	UnsafeSysctls []string `json:"unsafeSysctls,omitempty"`
	// HugePages are those that the pod asks for, as in agentapi.Config.
	HugePages []HugePages `json:"hugePages,omitempty"`
	// SwapBytes is the swap of the machine that the pod asks for, as in agentapi.Config.
	SwapBytes int64 `json:"swapBytes,omitempty"`
	// GPUs are how many of NVIDIA's the pod asks for.
	GPUs int64 `json:"gpus,omitempty"`
	// Accelerators are how many others the pod asks for, by their resource. Nobody changes it.
	Accelerators map[corev1.ResourceName]int64 `json:"accelerators,omitempty"`
	// HealthyTimeout is the pod's own time limit for a silent cell; nil for the
	// configured one, 0 or less for none.
	HealthyTimeout *time.Duration `json:"healthyTimeout,omitempty"`
}

// give notes in the record of a cell that it is the cell of the pod that has requested it.
func (c *Cell) give(r Request) {
	c.Pod, c.Node, c.Account, c.PodCreated = r.Pod, r.Node, r.Account, r.Created
	c.Attempt, c.Needs, c.Special, c.Wants = r.Attempt, r.Needs, r.Special, r.Wants
	c.Best, c.RuledOut = r.best(), r.RuledOut
	c.step(apiv1.StepSeen, r.Seen)
}
