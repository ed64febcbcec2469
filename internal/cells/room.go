package cells

import (
	"context"
	"fmt"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// arrive makes a cell Ready whose kubelet is, or ends one whose machine is too small for
// its pod: its kubelet would refuse the pod, or the kernel end it.
func (c *Controller) arrive(ctx context.Context, e *entry) error {
	cell := e.cell()
	room, measured := cell.Room, false
	if room.None() {
		room = roomOf(e.api.Node(), cell.Offer())
		measured = !room.None()
	}
	short := c.lacks(room, cell.Needs)
	err := c.save(ctx, e, func(cell *Cell) error {
		cell.Room = room
		if short {
			return nil
		}
		now := c.cfg.Clock.Now()
		cell.step(apiv1.StepReady, now)
		if !cell.Boot.Told.IsZero() && !cell.Boot.Told.Before(cell.launched()) {
			cell.Boot.Ready = now
		}
		return cell.enter(apiv1.Ready)
	})
	if err != nil {
		return err
	}
	if measured {
		c.observers.CellMeasured(*e.cell())
	}
	if !short {
		return nil
	}
	need := cell.Needs
	why := fmt.Sprintf("the machine of %s has %s, and the pod needs %s (+%s for the cell)", cell.Offer(), roomText(room), roomText(need),
		resource.NewQuantity(c.cfg.ReservedMemoryBytes, resource.BinarySI))
	c.warn(cell, events.CellTooSmall, "Cell %s: %s; it is terminated, and the pod gets a larger one", e.id, why)
	c.mu.Lock()
	e.cause = CauseTooSmall
	c.mu.Unlock()
	return c.startTerminating(ctx, e, why)
}

// lacks says that a machine with a room, if that is known, is too small for what a pod needs.
func (c *Controller) lacks(room, needs catalog.Room) bool {
	if room.None() || needs.None() {
		return false
	}
	room.MemoryBytes -= c.cfg.ReservedMemoryBytes
	return !needs.Beyond(room).None()
}

// roomOf is what a cell's kubelet says of its machine, as far as the offer promises it; zero
// where it has said nothing.
func roomOf(node *corev1.Node, promised Offer) (r catalog.Room) {
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
	r = catalog.Room{
		MilliCPU:    least(node.Status.Capacity[corev1.ResourceCPU], true, promised.MilliCPU),
		MemoryBytes: least(node.Status.Capacity[corev1.ResourceMemory], false, promised.MemoryBytes),
	}
	if r.MilliCPU == 0 || r.MemoryBytes == 0 {
		return catalog.Room{}
	}
	return r
}

func roomText(r catalog.Room) string {
	return fmt.Sprintf("cpu %s, memory %s", resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI),
		resource.NewQuantity(r.MemoryBytes, resource.BinarySI))
}
