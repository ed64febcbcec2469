package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Release lets a pod's cell go: its instance is terminated. podEnded says that
// the pod ran to its end. Its logs are then saved first. A pod without a cell is no
// error.
func (c *Controller) Release(uid types.UID, why string, podEnded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cells[c.byPod[uid]]
	if !ok || e.ending != "" {
		return
	}
	e.ending, e.podEnded, e.cause = why, podEnded, CausePodDeleted
	if podEnded {
		e.cause = CausePodEnded
	}
	c.queue.Add(e.id)
}

// ReleaseVanished lets a pod's cell go of which nobody has seen that it was deleted: the
// API server may have lost it. It returns false while the end of a cell that runs the pod
// is held back.
func (c *Controller) ReleaseVanished(ctx context.Context, uid types.UID, why string) bool {
	c.mu.Lock()
	e, ok := c.cells[c.byPod[uid]]
	runs := ok && e.ending == "" && (e.binding || e.cell().Phase == apiv1.Bound)
	c.mu.Unlock()
	if !runs {
		c.Release(uid, why, false)
		return true
	}
	end := c.endOf(e.cell(), why)
	end.Mistakable = true
	if !c.admit(ctx, e, end, c.population()) {
		return false
	}
	c.Release(uid, why, false)
	return true
}

// ReleaseUnbound lets a pod's cell go if its kubelet has not seen the pod. From
// then on the kubelet cannot see the pod. It returns false when the cell is bound:
// the kubelet then ends the pod.
func (c *Controller) ReleaseUnbound(uid types.UID, why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cells[c.byPod[uid]]
	if !ok {
		return true
	}
	if e.binding || e.cell().Phase == apiv1.Bound || e.cell().Phase == apiv1.Draining {
		return false
	}
	if e.ending == "" {
		e.ending, e.cause = why, CausePodDeleted
		c.queue.Add(e.id)
	}
	return true
}
