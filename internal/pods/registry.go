package pods

import (
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// registry knows the pods that exist and of which something is noted. It has the lock of all notes.
type registry struct {
	listed watches.Pods
	clock  clock.PassiveClock

	mu      sync.Mutex
	seen    map[types.UID]time.Time // when something was first noted of each pod
	forgets []func(types.UID)       // drop the notes of a pod; called with mu held
}

func newRegistry(listed watches.Pods, clock clock.PassiveClock) *registry {
	return &registry{listed: listed, clock: clock, seen: map[types.UID]time.Time{}}
}

// get returns a pod; nil if there is none of this name.
func (r *registry) get(name cache.ObjectName) (*corev1.Pod, error) {
	obj, exists, err := r.listed.GetStore().GetByKey(name.String())
	if err != nil || !exists {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// knows reports whether a pod exists: what was noted of one that does not would be kept for ever. The
// caller holds mu, without which the pod could be forgotten between the question and the note.
func (r *registry) knows(pod apiv1.PodReference) bool {
	if _, known := r.seen[pod.UID]; known {
		return true
	}
	here, err := r.get(cache.ObjectName{Namespace: pod.Namespace, Name: pod.Name})
	// Before the pods are listed it may be one of them: Run forgets it if not.
	if (err != nil || here == nil || here.UID != pod.UID) && r.listed.HasSynced() {
		return false
	}
	r.seen[pod.UID] = r.clock.Now()
	return true
}

// forget drops what is noted of a pod.
func (r *registry) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(uid)
}

// drop is forget for a caller that holds mu.
func (r *registry) drop(uid types.UID) {
	for _, forget := range r.forgets {
		forget(uid)
	}
	delete(r.seen, uid)
}

// forgetUnlisted drops what was noted of pods that turn out not to be there.
func (r *registry) forgetUnlisted() {
	there := map[types.UID]bool{}
	for _, obj := range r.listed.GetStore().List() {
		there[obj.(*corev1.Pod).UID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.seen {
		if !there[uid] {
			r.drop(uid)
		}
	}
}

// notes are what one part knows about each pod. They go when the pod goes.
type notes[T any] struct {
	registry *registry
	of       map[types.UID]*T // under the registry's mu
}

func newNotes[T any](r *registry) *notes[T] {
	n := &notes[T]{registry: r, of: map[types.UID]*T{}}
	r.forgets = append(r.forgets, func(uid types.UID) { delete(n.of, uid) })
	return n
}

// note changes what is known about a pod, if the pod exists.
func (n *notes[T]) note(pod apiv1.PodReference, change func(*T)) {
	n.registry.mu.Lock()
	defer n.registry.mu.Unlock()
	if known := n.at(pod); known != nil {
		change(known)
	}
}

// at returns what is known about a pod, to be read or changed; nil if the pod does not exist. The caller holds the registry's mu.
func (n *notes[T]) at(pod apiv1.PodReference) *T {
	if !n.registry.knows(pod) {
		return nil
	}
	known := n.of[pod.UID]
	if known == nil {
		known = new(T)
		n.of[pod.UID] = known
	}
	return known
}

// get returns a copy of what is known about a pod.
func (n *notes[T]) get(uid types.UID) (known T) {
	n.registry.mu.Lock()
	defer n.registry.mu.Unlock()
	if is := n.of[uid]; is != nil {
		known = *is
	}
	return known
}
