package pods

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

const (
	// shortFor is how long a pod waits for capacity on its node before another node
	// is to get it: a cell takes a minute, and a shortage of less is not worth another.
	shortFor = 2 * time.Minute
	// leaveRetry is the wait after a disruption budget forbade to evict such a pod.
	leaveRetry = 30 * time.Second
)

// leaving evicts pods from nodes that have no capacity for them.
type leaving struct {
	nodes      Nodes
	choosing   *choosing
	duplicates *duplicates
	evicting   *evicting
	waits      *waits
	returns    *returns
	clock      clock.PassiveClock
}

// leaveNode evicts a pod for which its node has had no capacity for a while, whatever it has
// for others, where another node of Kip's can serve it: a pod that is bound cannot change
// its node, and a machine on demand would make the node's label a lie. It returns after how
// long to look again: most where nothing else says.
func (s *leaving) leaveNode(ctx context.Context, pod *corev1.Pod, most time.Duration) (time.Duration, error) {
	now := s.clock.Now()
	since := s.waits.noteShort(apiv1.Ref(pod), now)
	if left := shortFor - now.Sub(since); left > 0 {
		return min(left, most), nil
	}
	stays, cameBack := s.noteStay(pod)
	if stays != 0 && s.evicting.last(pod, noCapacity) == stays {
		return most, nil
	}
	other := s.elsewhere(ctx, pod)
	if other == "" {
		return most, nil
	}
	switch stays {
	case unservableStays:
		s.evicting.reportOnce(pod, noCapacity, stays, events.NewUnservablePodStays(pod.Spec.NodeName, other))
		return most, nil
	case unservableCameBack:
		s.evicting.reportOnce(pod, noCapacity, stays, events.NewUnservablePodCameBack(pod.Spec.NodeName, other, cameBack))
		return most, nil
	}
	if why, sure := s.duplicates.end(pod); why != "" {
		return min(most, behindWait(sure)), nil // it may run on a cell that this Kip does not know of
	}
	e := eviction{
		cause:   noCapacity,
		from:    "a node without capacity",
		done:    events.NewUnservablePodEvicted(pod.Spec.NodeName, now.Sub(since), other),
		blocked: func(why error) events.Event { return events.NewUnservablePodBlocked(pod.Spec.NodeName, why) },
		retry:   leaveRetry,
	}
	if s.evicting.last(pod, noCapacity) == evictionBlocked { // no node turns pods away for one that may not leave
		if may, again, err := s.evicting.allowed(ctx, pod, e); !may {
			return again, err
		}
	}
	if !s.nodes.TurnsAway(ctx, pod) {
		return most, nil
	}
	evicted, again, err := s.evicting.evict(ctx, pod, e)
	if evicted {
		s.returns.evicted(pod)
	}
	return again, err
}

// noteStay returns why a pod is not evicted, wherever else there is capacity, and of one
// that came back how that went; 0 if it may be. It notes that a pod came back.
func (s *leaving) noteStay(pod *corev1.Pod) (why notice, cameBack string) {
	if metav1.GetControllerOf(pod) == nil {
		return unservableStays, ""
	}
	if cameBack = s.returns.noteReturn(pod); cameBack != "" {
		return unservableCameBack, cameBack
	}
	return 0, ""
}

// elsewhere is another node on which something can be launched for a pod now; "" if
// there is none.
func (s *leaving) elsewhere(ctx context.Context, pod *corev1.Pod) string {
	for _, node := range s.nodes.Elsewhere(ctx, pod) {
		there := pod.DeepCopy()
		there.Spec.NodeName = node
		// Of a disk it is not known whether that node may use it.
		if r, err := s.choosing.Choose(ctx, there); err == nil {
			if len(r.Disks) > 0 {
				return "" // which are the pod's on any node
			}
			return node
		}
	}
	return ""
}
