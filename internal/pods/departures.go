package pods

import (
	"crypto/sha256"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// firstReturn is how long after its eviction the pods of a controller are left on a node
	// once one of them has come back there. It doubles with each eviction in vain.
	firstReturn = 20 * time.Minute
	// longestReturn bounds that: what keeps the pods from other nodes may end.
	longestReturn = 24 * time.Hour
	// passedOver is how long a pod was without a node that no other node could have. One that
	// can be placed is placed within a second or two; the node that others leave turns pods away
	// for most of a minute.
	passedOver = 10 * time.Second
	// mostDepartures bounds what is kept of controllers and nodes. That of the longest ago goes.
	mostDepartures = 4096
)

// departures are evictions of pods from nodes that had nothing for them. They are not stored:
// what is forgotten with this process costs an eviction that is in vain, and each process
// counts anew.
type departures map[route]*departure

// route is a controller whose pods leave a node. Pods say themselves whose they are, in as many
// bytes as they like, so it is a digest that is kept; of the namespace too, since another's
// pods may name the same controller.
type route struct {
	owner [sha256.Size]byte
	node  string
}

func routeOf(pod *corev1.Pod) (r route, is bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return route{}, false
	}
	return route{owner: sha256.Sum256([]byte(pod.Namespace + "/" + string(owner.UID))), node: pod.Spec.NodeName}, true
}

// departure is what has become of the pods of a controller that left a node.
type departure struct {
	first, last time.Time     // when one was evicted
	vain        int           // evictions after which one has come back
	counted     bool          // the last is one of them
	stays       time.Duration // after the last, for which those that came back are left alone
}

// until is when pods that came back may be evicted again.
func (d *departure) until() time.Time { return d.last.Add(d.stays) }

// over reports whether nothing of it counts any more: what came back has had its time, and as long
// again.
func (d *departure) over(now time.Time) bool {
	return now.Sub(d.last) > 2*max(d.stays, firstReturn)
}

// left notes that a pod was evicted from its node.
func (all departures) left(pod *corev1.Pod, now time.Time) {
	r, is := routeOf(pod)
	if !is {
		return
	}
	d := all[r]
	if d == nil || d.over(now) {
		d = &departure{first: now}
		all[r] = d
	}
	d.last, d.counted = now, false
	if len(all) <= mostDepartures {
		return
	}
	oldest := r
	for other, d := range all {
		if d.last.Before(all[oldest].last) {
			oldest = other
		}
	}
	delete(all, oldest)
}

// cameBack returns the departure after which a pod, first seen then, came to the node that
// others of its controller were evicted from; nil if there was none. Those that are evicted
// together are in vain once.
func (all departures) cameBack(pod *corev1.Pod, seen, now time.Time) *departure {
	r, is := routeOf(pod)
	if !is {
		return nil
	}
	d := all[r]
	switch {
	case d == nil, !seen.After(d.first), !wasPassedOver(pod):
		return nil
	case d.over(now):
		delete(all, r)
		return nil
	}
	if !d.counted && (seen.After(d.last) || d.vain == 0) {
		d.counted, d.vain = true, d.vain+1
		d.stays = min(max(2*d.stays, firstReturn), longestReturn)
	}
	return d
}

// wasPassedOver reports whether no other node could have a pod that has one now: it was without a
// node while its own turned pods away, or no scheduler chose it. All times are of the API
// server's clock.
func wasPassedOver(pod *corev1.Pod) bool {
	for _, k := range pod.Status.Conditions {
		if k.Type == corev1.PodScheduled && k.Status == corev1.ConditionTrue {
			return k.LastTransitionTime.Sub(schedulable(pod, k.LastTransitionTime.Time)) >= passedOver
		}
	}
	return true
}

// schedulable is since when a pod that was bound then could be scheduled, as far as it shows:
// its creation, or the last change of one that had scheduling gates. That it had some is seen
// by its generation, which is 1 as long as the spec is as it was made, and which a binding
// leaves alone; the condition of the gates is gone once it is bound. A change of the rest
// alone, such as an annotation that somebody writes on pods that wait, does not count. Nor is
// seen who took the gates away and wrote nothing.
func schedulable(pod *corev1.Pod, bound time.Time) time.Time {
	since := pod.CreationTimestamp.Time
	if pod.Generation <= 1 { // 0 of an API server that does not count them
		return since
	}
	for _, change := range pod.ManagedFields {
		if change.Subresource == "" && change.Time != nil && change.Time.After(since) && !change.Time.After(bound) {
			since = change.Time.Time
		}
	}
	return since
}

// returns knows the departures that were in vain: pods came back to the node.
type returns struct {
	registry   *registry
	clock      clock.PassiveClock
	departures departures         // under the registry's mu
	back       *notes[*departure] // of others of a pod's controller, after which the pod came to the same node
}

// evicted notes that a pod was evicted from a node that had nothing for it.
func (s *returns) evicted(pod *corev1.Pod) {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	s.departures.left(pod, s.clock.Now())
}

// noteReturn notes whether a pod came back to its node. It returns until when the pod is left there, and why; "" where it
// may leave.
func (s *returns) noteReturn(pod *corev1.Pod) (why string) {
	now := s.clock.Now()
	s.back.note(apiv1.Ref(pod), func(back **departure) {
		if *back == nil {
			*back = s.departures.cameBack(pod, s.registry.seen[pod.UID], now)
		}
		why = (*back).reason(pod.Spec.NodeName, now)
	})
	return why
}

// known is what noteReturn has returned last of a pod on a node; "" where that does not count any more.
func (s *returns) known(uid types.UID, node string) string {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if back := s.back.of[uid]; back != nil {
		return (*back).reason(node, s.clock.Now())
	}
	return ""
}

// reason tells people of a departure in vain, as long as it keeps those that came back on their node; "" of none, or later.
func (d *departure) reason(node string, now time.Time) string {
	if d == nil || !d.until().After(now) {
		return ""
	}
	return events.EvictedInVain(node, d.vain, d.until())
}
