package pods

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

const (
	// vanishedRetry is when a pod is looked for again that nobody has seen deleted, while
	// the end of its cell is held back.
	vanishedRetry = 15 * time.Second
	// forbiddenFor is how long a look for a pod may be forbidden before Kip takes that for good. An API server that has just
	// begun refuses for some minutes what it will allow (kubernetes/kubernetes#121635).
	forbiddenFor = 15 * time.Minute
)

// releasing releases the cells of pods that are gone.
type releasing struct {
	cells Cells
	nodes Nodes
	clock clock.PassiveClock
	log   *slog.Logger

	mu        sync.Mutex
	gone      map[types.UID]bool      // pods with a cell of which it was seen that they were deleted
	forbidden map[types.UID]time.Time // pods that may not be looked for, since when
}

// release releases the cells of earlier pods of a name, which is now that of pod, or of none: a name
// is reused, a UID is not. It returns after how long to look again; 0 means when something changes.
func (s *releasing) release(ctx context.Context, name cache.ObjectName, pod *corev1.Pod) (again time.Duration) {
	for _, uid := range s.cells.PodsNamed(name) {
		cell, has := s.cells.ForPod(uid)
		switch {
		case pod != nil && pod.UID == uid:
		case pod != nil || s.wasDeleted(uid): // another has its name, or nobody
			s.cells.Release(uid, "the pod was deleted", false)
		case has && !s.nodes.Listed(cell.Node):
			again = staleRetry // whether it is there is not known: its cell stays
		case has && cell.Node != "" && s.mayExist(ctx, name, uid, cell.Node):
			again = vanishedRetry
		case !s.cells.ReleaseVanished(ctx, uid, "the API server does not show the pod any more"):
			again = cmp.Or(again, vanishedRetry)
			if _, sure := s.cells.Behind(); !sure {
				again = staleRetry // a list of the cloud comes soon
			}
		}
	}
	return again
}

// seenDeleted notes that somebody deleted a pod that has a cell.
func (s *releasing) seenDeleted(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[uid] = true
}

func (s *releasing) wasDeleted(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone[uid]
}

// cellGone forgets a pod when its cell is gone.
func (s *releasing) cellGone(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gone, uid)
	delete(s.forbidden, uid)
}

// mayExist reports whether the API server has a pod that the watch does not show, or cannot tell. It is asked for a list with a
// selector: to get a pod that does not exist is forbidden to a node (k8s.io/kubernetes/plugin/pkg/auth/authorizer/node).
func (s *releasing) mayExist(ctx context.Context, name cache.ObjectName, uid types.UID, node string) bool {
	list, err := s.nodes.Client(node).CoreV1().Pods(name.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", node),
			fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name)).String(),
	})
	since := s.forbiddenSince(uid, apierrors.IsForbidden(err))
	if err != nil {
		s.log.Warn("look for a pod that is not listed any more", "pod", name.String(), "err", err)
		return since.IsZero() || s.clock.Since(since) < forbiddenFor
	}
	return slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.UID == uid })
}

// forbiddenSince notes whether a pod may be looked for, and returns since when not; zero if it may.
func (s *releasing) forbiddenSince(uid types.UID, forbidden bool) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !forbidden {
		delete(s.forbidden, uid)
	} else if s.forbidden[uid].IsZero() {
		s.forbidden[uid] = s.clock.Now()
	}
	return s.forbidden[uid]
}
