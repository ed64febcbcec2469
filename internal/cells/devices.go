package cells

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

// gpuTimeout is how long a machine without its GPUs is paid for.
const gpuTimeout = 5 * time.Minute

// lacked is the first resource of which a kubelet has less than the pod asks for: how many it
// has, and how many are asked for; both are 0 if it has all.
func (c *Cell) lacked(node *corev1.Node) (name corev1.ResourceName, has, asked int64) {
	lacks := func(of corev1.ResourceName, count int64) bool {
		name, has, asked = of, 0, count
		if node != nil {
			has = node.Status.Allocatable.Name(of, "").Value()
		}
		return has < asked
	}
	if lacks(agentapi.ResourceGPU, c.GPUs) {
		return name, has, asked
	}
	for _, of := range slices.Sorted(maps.Keys(c.Accelerators)) {
		if lacks(of, c.Accelerators[of]) {
			return name, has, asked
		}
	}
	return "", 0, 0
}

// needsDevices reports whether the cell's pod asks for GPUs or other accelerators.
func (cell *Cell) needsDevices() bool { return cell.GPUs > 0 || len(cell.Accelerators) > 0 }

// devices waits for the GPUs and other accelerators of ready cells.
type devices struct{ counts *kubeletCounts }

var _ preparation = (*devices)(nil)

// prepare waits until the kubelet of a ready cell has the GPUs, and other accelerators, that the
// pod asks for. One that has been told of the resource, and has no device, refuses the pod for
// good; one that has not been told runs it without.
func (s *devices) prepare(ctx context.Context, e *entry) (progress, error) {
	cell := e.cell()
	if !cell.needsDevices() || s.counts.has(e) {
		return done, nil
	}
	name, has, asked := cell.lacked(e.api.Node())
	if asked == 0 {
		return s.counts.counted(ctx, e), nil
	}
	what, lacks := "GPUs", events.GPUsMissing(e.id, string(name), has, asked)
	if name != agentapi.ResourceGPU {
		what, lacks = "accelerators", events.AcceleratorsMissing(string(name), has, asked, string(agentapi.ResourceGPU))
	}
	return s.counts.wait(ctx, e, shortage{
		text:    lacks,
		event:   events.NewGPUsNotReady(what, e.id, lacks),
		timeout: gpuTimeout,
		late:    fmt.Sprintf("its %s were not there in %s: %s", what, gpuTimeout, lacks),
	}), nil
}
