package cells

import (
	"context"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

const (
	// gpuPoll is how often it is looked whether a cell's kubelet has its GPUs.
	gpuPoll = 200 * time.Millisecond
	// gpuSilence is how long they may take before the pod is told: a driver finds eight of
	// them within some ten seconds.
	gpuSilence = 30 * time.Second
	// gpuTimeout is how long a machine without them is paid for.
	gpuTimeout = 5 * time.Minute
)

// equip waits until the kubelet of a ready cell has the GPUs that the pod asks for. One that
// has been told of the resource, and has no device, refuses the pod for good; one that has
// not been told runs it without. It returns true as well when something else is to be done
// with the cell first.
func (c *Controller) equip(ctx context.Context, e *entry) (ready bool, again time.Duration, err error) {
	cell := e.cell()
	if cell.GPUs == 0 || cell.Stopped || e.equipped {
		return true, 0, nil
	}
	if stays, err := c.stays(ctx, e); !stays {
		return err == nil, 0, err
	}
	var has int64
	if node := e.api.Node(); node != nil {
		has = node.Status.Allocatable.Name(agentapi.ResourceGPU, "").Value()
	}
	if has >= cell.GPUs {
		e.equipped = true
		c.noteDisk(ctx, e, told{})
		return true, 0, nil
	}
	now := c.cfg.Clock.Now()
	if e.equipping.IsZero() {
		e.equipping = now
	}
	lacks := fmt.Sprintf("its kubelet has %d of %d %s: the image's driver, its device nodes and libraries, is what gives them", has, cell.GPUs,
		agentapi.ResourceGPU)
	left := e.timeLeft(e.equipping.Add(gpuTimeout + c.cfg.Late.Since(e.equipping)).Sub(now))
	if left <= 0 {
		c.endFor(e, CauseNotReady, fmt.Sprintf("its GPUs were not there in %s: %s", gpuTimeout, lacks))
		return true, 0, nil
	}
	if now.Sub(e.equipping) >= gpuSilence {
		c.tellDisk(ctx, e, events.GPUsNotReady, fmt.Sprintf("The GPUs of cell %s are not there yet: %s", e.id, lacks))
	}
	return false, gpuPoll, nil
}
