package cells

import (
	"fmt"

	"github.com/elotl/kip/internal/catalog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// tooSmall reports whether a machine that was measured is too small for what a pod needs. It is not if nobody measured it, or if the pod
// takes what there is.
func tooSmall(measured, needs catalog.Resources, reserved int64) bool {
	if measured.None() || needs.None() {
		return false
	}
	measured.MemoryBytes -= reserved
	return !needs.Sub(measured).None()
}

// measure returns what a cell's kubelet says of its machine, as far as the offering promises it; zero
// where it has said nothing.
func measure(node *corev1.Node, promised Offering) (r catalog.Resources) {
	if node == nil {
		return r
	}
	least := func(q resource.Quantity, milli bool, most int64) int64 {
		limit := resource.NewQuantity(most, resource.BinarySI)
		if milli {
			limit = resource.NewMilliQuantity(most, resource.DecimalSI)
		}
		switch {
		case q.Sign() <= 0:
			return 0
		case q.Cmp(*limit) >= 0: // also what is larger than a number can be
			return most
		case milli:
			return q.MilliValue()
		}
		return q.Value()
	}
	r = catalog.Resources{
		MilliCPU:    least(node.Status.Capacity[corev1.ResourceCPU], true, promised.MilliCPU),
		MemoryBytes: least(node.Status.Capacity[corev1.ResourceMemory], false, promised.MemoryBytes),
	}
	if r.MilliCPU == 0 || r.MemoryBytes == 0 {
		return catalog.Resources{}
	}
	return r
}

func resourcesText(r catalog.Resources) string {
	return fmt.Sprintf("cpu %s, memory %s", resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI),
		resource.NewQuantity(r.MemoryBytes, resource.BinarySI))
}
