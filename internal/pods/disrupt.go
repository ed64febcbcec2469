package pods

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

const (
	// disruptionPace is the least time between two evictions that could wait. mostDisrupted is how many of the pods that were
	// evicted so may be ending at the same time, and mostOfNamespace how many of one namespace.
	disruptionPace, mostDisrupted, mostOfNamespace = 10 * time.Second, 10, 5
	// longestEnding bounds how much of its grace period such a pod counts as ending: pods choose their grace period, and
	// finalizers keep them for ever.
	longestEnding = 10 * time.Minute
	// disruptionRetry is about when such an eviction is tried again.
	disruptionRetry = time.Minute
	// mostPaced bounds of how many controllers it is known when a pod of theirs was evicted.
	mostPaced = 4096
)

// doNotDisrupt are annotations by which a pod asks not to be evicted from its node without need, and their values: those of
// Karpenter and of Cluster Autoscaler. By the other value a pod of a Job asks to be evicted like others.
var doNotDisrupt = map[string]string{
	"karpenter.sh/do-not-disrupt":                    "true",
	"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}

// disrupting evicts pods that could stay where they are: a few at a time, within their disruption budgets, and only those that
// another replaces.
type disrupting struct {
	cells    Cells
	choosing *choosing
	evicting *evicting
	evicted  *notes[ending]
	random   backoff.Random
	clock    clock.PassiveClock
	paused   *pause

	mu      sync.Mutex
	busy    bool // one is being evicted
	last    time.Time
	ofOwner map[route]time.Time // when a pod of each controller was evicted last, on any node
}

// ending is a pod that was evicted.
type ending struct {
	namespace string
	until     time.Time // it counts as ending until then, or until it is gone
}

// disruption is an eviction that could wait.
type disruption struct {
	eviction
	stays func(why string) events.Event // of a pod that is not evicted
	apart time.Duration                 // least time since another pod of its controller was evicted
	// better, where it is not nil, leaves of a request what the pod is to be evicted for. An error says that there is nothing.
	better func(*cells.Request) error
	// tried, where it is not nil, is told of each attempt.
	tried func(evicted bool)
}

// evict evicts a pod if that may be now. It returns after how long to try again; 0 means when the pod changes.
func (s *disrupting) evict(ctx context.Context, pod *corev1.Pod, d disruption) (again time.Duration, err error) {
	if why := whyUndisrupted(pod); why != "" {
		s.reportStays(pod, d.cause, d.stays(why))
		return 0, nil
	}
	owner, _ := routeOf(pod)
	owner.node = ""
	retry := s.random.Jittered(disruptionRetry)
	if why, _ := s.cells.Behind(); why != "" || s.paused.why() != "" || !s.begin(pod.Namespace, owner, d.apart) {
		return retry, nil
	}
	evicted := false
	defer func() { s.end(pod, owner, evicted) }()
	if !s.replaceable(ctx, pod, d.better) { // another would wait
		return retry, nil
	}
	d.retry = cmp.Or(d.retry, retry)
	evicted, again, err = s.evicting.evict(ctx, pod, d.eviction)
	if d.tried != nil && err == nil {
		d.tried(evicted)
	}
	return again, err
}

// reportStays reports, once, why a pod that could stay is not evicted for a cause.
func (s *disrupting) reportStays(pod *corev1.Pod, cause evictionCause, event events.Event) {
	s.evicting.reportOnce(pod, cause, undisruptedStays, event)
}

// replaceable reports whether another pod like this one would get a cell now. better is as in disruption.
func (s *disrupting) replaceable(ctx context.Context, pod *corev1.Pod, better func(*cells.Request) error) bool {
	c, err := s.choosing.choose(ctx, pod)
	if err != nil {
		return false
	}
	affords := func(r cells.Request) error {
		if better != nil {
			if err := better(&r); err != nil {
				return err
			}
		}
		return s.cells.Affords(ctx, r)
	}
	err = affords(c.Request)
	if alone, less := s.choosing.withoutSets(ctx, pod, c, err); less {
		err = affords(alone.Request)
	}
	return err == nil
}

// begin reports whether a pod of a namespace and controller may be evicted now. The caller then calls end.
func (s *disrupting) begin(namespace string, owner route, apart time.Duration) bool {
	now := s.clock.Now()
	all, of := s.ending(namespace, now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy || all >= mostDisrupted || of >= mostOfNamespace || now.Sub(s.last) < disruptionPace || now.Sub(s.ofOwner[owner]) < apart {
		return false
	}
	s.busy = true
	return true
}

// ending returns how many of the pods that were evicted are ending, and how many of them are of a namespace.
func (s *disrupting) ending(namespace string, now time.Time) (all, of int) {
	s.evicted.registry.mu.Lock()
	defer s.evicted.registry.mu.Unlock()
	for uid, e := range s.evicted.of {
		switch {
		case !e.until.After(now):
			delete(s.evicted.of, uid)
			continue
		case e.namespace == namespace:
			of++
		}
		all++
	}
	return all, of
}

// end notes whether a pod was evicted.
func (s *disrupting) end(pod *corev1.Pod, owner route, evicted bool) {
	if evicted {
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
		if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
			grace = min(max(*g, 0), int64(longestEnding/time.Second))
		}
		until := s.clock.Now().Add(time.Duration(grace)*time.Second + overdue)
		s.evicted.note(apiv1.Ref(pod), func(e *ending) { *e = ending{namespace: pod.Namespace, until: until} })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	if !evicted {
		return
	}
	s.last = s.clock.Now()
	makeRoom(s.ofOwner, owner, func(at time.Time) time.Time { return at })
	s.ofOwner[owner] = s.last
}

// makeRoom forgets what is oldest, by at, of what is known of controllers, if that is of mostPaced and there is nothing of this one.
func makeRoom[T any](known map[route]T, owner route, at func(T) time.Time) {
	if _, has := known[owner]; has || len(known) < mostPaced {
		return
	}
	delete(known, slices.MinFunc(slices.Collect(maps.Keys(known)), func(a, b route) int { return at(known[a]).Compare(at(known[b])) }))
}

// whyUndisrupted returns why a pod that could stay is not evicted at all; "" if it may be.
func whyUndisrupted(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil:
		return "no controller would replace it"
	}
	asks := false // to be evicted like others
	for name, not := range doNotDisrupt {
		switch value, has := pod.Annotations[name]; {
		case value == not:
			return "it has the annotation " + name
		case has && (value == "true" || value == "false"):
			asks = true
		}
	}
	if owner.Kind == "Job" && !asks {
		return "it is a Job's, and its work would begin anew"
	}
	return ""
}
