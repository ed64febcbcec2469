package pods

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// shortFor is how long a pod waits for capacity on its node before another node
	// is to get it: a cell takes a minute, and a shortage of less is not worth another.
	shortFor = 2 * time.Minute
	// leaveRetry is the wait after a disruption budget forbade to evict such a pod.
	leaveRetry = 30 * time.Second
)

// leaveNode evicts a pod for which its node has had no capacity for a while, whatever it has
// for others, where another node of Kip's can serve it: a pod that is bound cannot change
// its node, and a machine on demand would make the node's label a lie. It returns after how
// long to look again: most where nothing else says.
func (c *Controller) leaveNode(ctx context.Context, pod *corev1.Pod, most time.Duration) (time.Duration, error) {
	now := c.cfg.Clock.Now()
	since := now
	c.note(apiv1.Ref(pod), func(w *waiting) {
		if w.short.IsZero() {
			w.short = now
		}
		since = w.short
	})
	if left := shortFor - now.Sub(since); left > 0 {
		return min(left, most), nil
	}
	reason, cameBack := c.staysFor(pod)
	if reason != "" && c.toldLast(pod) == reason {
		return most, nil
	}
	other := c.elsewhere(ctx, pod)
	if other == "" {
		return most, nil
	}
	switch reason {
	case events.UnservablePodStays:
		c.tellOnce(pod, events.NewUnservablePodStays(pod.Spec.NodeName, other))
		return most, nil
	case events.UnservablePodCameBack:
		c.tellOnce(pod, events.NewUnservablePodCameBack(pod.Spec.NodeName, other, cameBack))
		return most, nil
	}
	if why, sure := c.endElsewhere(pod); why != "" {
		return min(most, behindWait(sure)), nil // it may run on a cell that this Kip does not know of
	}
	var err error
	if c.toldLast(pod) == events.EvictionBlocked { // no node turns pods away for one that may not leave
		err = c.evict(ctx, pod, nil, metav1.DryRunAll)
	}
	if err == nil {
		if !c.cfg.Nodes.TurnsAway(ctx, pod) {
			return most, nil
		}
		err = c.evict(ctx, pod, nil)
	}
	switch {
	case err == nil:
		c.left(pod)
		c.cfg.Events.Event(apiv1.Ref(pod), events.NewUnservablePodEvicted(pod.Spec.NodeName, now.Sub(since), other))
		return 0, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return 0, nil // it is gone, or another of its name is there
	case apierrors.IsTooManyRequests(err):
		c.tellOnce(pod, events.NewUnservablePodBlocked(pod.Spec.NodeName, err))
		return leaveRetry, nil
	default:
		return 0, fmt.Errorf("evict pod %s from a node without capacity: %w", apiv1.Ref(pod), err)
	}
}

// staysFor returns the reason of the Event of a pod that is not evicted, wherever else there is capacity, and of one
// that came back why; "" if it may be.
func (c *Controller) staysFor(pod *corev1.Pod) (reason, cameBack string) {
	if metav1.GetControllerOf(pod) == nil {
		return events.UnservablePodStays, ""
	}
	c.note(apiv1.Ref(pod), func(w *waiting) {
		if w.back == nil {
			w.back = c.departures.cameBack(pod, w.seen, c.cfg.Clock.Now())
		}
		if cameBack = w.stays(pod.Spec.NodeName, c.cfg.Clock.Now()); cameBack != "" {
			reason = events.UnservablePodCameBack
		}
	})
	return reason, cameBack
}

// elsewhere is another node on which something can be launched for a pod now; "" if
// there is none.
func (c *Controller) elsewhere(ctx context.Context, pod *corev1.Pod) string {
	for _, node := range c.cfg.Nodes.Elsewhere(ctx, pod) {
		there := pod.DeepCopy()
		there.Spec.NodeName = node
		// Of a disk it is not known whether that node may use it.
		if r, err := c.Choose(ctx, there); err == nil {
			if len(r.Disks) > 0 {
				return "" // which are the pod's on any node
			}
			return node
		}
	}
	return ""
}
