package pods

import (
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const (
	// firstBackoff is the first wait between two cells for the same pod, or two looks that found none, and
	// longestBackoff the longest between two cells.
	firstBackoff, longestBackoff = time.Second, 5 * time.Minute
	// changeSettles is how long a waiting pod that is changed waits at most: each look
	// for an instance is work.
	changeSettles = 3 * time.Second
	// unplaceableRetry is how long a pod that fits no type waits for another
	// look: types and prices change by the day.
	unplaceableRetry = 10 * time.Minute
	// refusedRetry is how long a pod whose host-sysctls or host-modules a cell has refused waits
	// for another cell, unless its annotations change: the image of cells may.
	refusedRetry = time.Hour
	// scarceRetry is the longest wait between two looks for a pod of whose types there are
	// none: shortages are counted for minutes.
	scarceRetry = 30 * time.Second
	// connectRetry is how long a pod waits for another look while Kip connects to its
	// standby cells.
	connectRetry = 200 * time.Millisecond
	// budgetRetry is how long a pod waits for another look whose namespace has no money left
	// for it: until a cell of it ends, or a month.
	budgetRetry = 30 * time.Second
)

// cause is why a pod waits, where something depends on it.
type cause int

const (
	otherCause    cause = iota
	outOfCapacity       // the pod's node has none for it
	overBudget          // of the pod's namespace
)

// waiting is why a pod has no cell, and since when it waits for what.
type waiting struct {
	why    string // "" if it has a cell, or nothing was reported
	cause  cause  // set with why
	reason string // of the Event, set with why
	node   string // on which it waits; set with why
	until  time.Time
	short  time.Time // since when there is no capacity for it on its node; zero if there is
	keys   []string  // what wakes it, as keys of waits.awaited
	missed missed    // its time

	looks   int       // in a row that found nothing to launch for it, or its volumes not ready
	unknown int       // in a row that found that the cloud is being asked about its disks
	looked  time.Time // when its volumes were last found not ready
	// What placement reads of a pod and can change.
	generation  int64
	annotations map[string]string
}

// missed is why a pod had no running cell when its time was over. It may wait on then, until nothing else can run it.
type missed struct {
	most string // what its annotation allowed; "" if its time is not over
	why  failure
}

// waits reports why pods have no cell.
type waits struct {
	*notes[waiting]
	events  cells.Recorder
	awaited map[string]map[types.UID]cache.ObjectName // the pods that wait for a claim or a disk, by its key
}

func newWaits(r *registry, recorder cells.Recorder) *waits {
	s := &waits{events: recorder, awaited: map[string]map[types.UID]cache.ObjectName{}}
	r.forgets = append(r.forgets, func(uid types.UID) { s.await(uid, cache.ObjectName{}) })
	s.notes = newNotes[waiting](r) // forgets after its keys are forgotten
	return s
}

// report notes and reports why a pod has no cell before a time, once for each reason.
// keys are what wakes it, as keys of awaited.
func (s *waits) report(pod *corev1.Pod, because cause, event events.Event, why string, until time.Time, keys ...string) {
	changed := false
	s.note(apiv1.Ref(pod), func(w *waiting) {
		// The figures of a budget change all the time: who asks is told, the Event is enough once.
		sameBudget := because == overBudget && w.cause == because && w.why != ""
		changed = w.why != why && !sameBudget
		w.why, w.node, w.cause, w.until, w.reason = why, pod.Spec.NodeName, because, until, event.Reason
		s.await(pod.UID, cache.ObjectName{Namespace: pod.Namespace, Name: pod.Name}, keys...)
		if because != outOfCapacity {
			w.short = time.Time{} // whether there is any is not known
		}
	})
	if changed {
		s.events.Event(apiv1.Ref(pod), event)
	}
}

// cellGone has a pod wait whose cell has refused what it asks of the kernel: the next one would, too.
func (s *waits) cellGone(cell cells.Cell) {
	if cell.Cause != cells.CauseKernelRefused {
		return
	}
	s.note(cell.Pod, func(w *waiting) {
		w.why, w.node, w.cause, w.until = cell.Reason, cell.Node, otherCause, s.registry.clock.Now().Add(refusedRetry)
	})
}

// end notes that a pod waits no more.
func (s *waits) end(pod apiv1.PodReference) {
	s.note(pod, func(w *waiting) {
		w.why = ""
		s.await(pod.UID, cache.ObjectName{})
	})
}

// noteShort notes that there is no capacity for a pod on its node. It returns since when there is none.
func (s *waits) noteShort(pod apiv1.PodReference, now time.Time) time.Time {
	since := now
	s.note(pod, func(w *waiting) {
		if w.short.IsZero() {
			w.short = now
		}
		since = w.short
	})
	return since
}

// foundCapacity notes that there was capacity for a pod on its node, if it is known to wait.
func (s *waits) foundCapacity(uid types.UID) {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if w := s.of[uid]; w != nil {
		w.short = time.Time{}
	}
}

// await notes what wakes a pod, instead of what did before. The caller holds the registry's mu.
func (s *waits) await(uid types.UID, pod cache.ObjectName, keys ...string) {
	w := s.of[uid]
	if w == nil {
		return
	}
	for _, key := range w.keys {
		if delete(s.awaited[key], uid); len(s.awaited[key]) == 0 {
			delete(s.awaited, key)
		}
	}
	w.keys = keys
	for _, key := range keys {
		if s.awaited[key] == nil {
			s.awaited[key] = map[types.UID]cache.ObjectName{}
		}
		s.awaited[key][uid] = pod
	}
}

// byNode returns how many pods have no cell, for a reason that was reported, by node.
func (s *waits) byNode() map[string]int {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	count := map[string]int{}
	for _, w := range s.of {
		if w.why != "" {
			count[w.node]++
		}
	}
	return count
}
