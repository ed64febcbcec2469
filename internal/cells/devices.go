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

// lacked returns the first resource of which a kubelet has less than the pod asks for: how many it
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
type devices struct {
	waits   *bindWaits
	counted perCell[bool] // the kubelet has counted them all; of their workers
}

var _ preparation = (*devices)(nil)

// prepare waits until the kubelet of a ready cell has the GPUs, and other accelerators, that the
// pod asks for. One that has been told of the resource, and has no device, refuses the pod for
// good; one that has not been told runs it without.
func (s *devices) prepare(ctx context.Context, e *entry) (progress, error) {
	cell, counted := e.cell(), s.counted.of(e)
	if !cell.needsDevices() || *counted {
		return done, nil
	}
	name, has, asked := cell.lacked(e.api().Node())
	if asked == 0 {
		*counted = true
		s.waits.over(ctx, e)
		return done, nil
	}
	what, lacks := "GPUs", events.GPUsMissing(e.id, string(name), has, asked)
	if name != agentapi.ResourceGPU {
		what, lacks = "accelerators", events.AcceleratorsMissing(string(name), has, asked, string(agentapi.ResourceGPU))
	}
	late := fmt.Sprintf("its %s were not there in %s: %s", what, gpuTimeout, lacks)
	return s.waits.wait(ctx, e, bindWait{
		by:       s,
		progress: waitFor(lacks, countPoll),
		event:    events.NewGPUsNotReady(what, e.id, lacks),
		silence:  countSilence,
		timeout:  gpuTimeout,
		end:      cellEnd{CauseNotReady, late, events.NewCellGivenUp(e.id, late)},
	})
}
