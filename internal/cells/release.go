package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"k8s.io/apimachinery/pkg/types"
)

// releases lets go of the cells of pods that no longer need them.
type releases struct {
	table *table
	loop  *loop
	holds *holds
}

// release lets a pod's cell go: its instance is terminated. podEnded says that
// the pod ran to its end. Its logs are then saved first. A pod without a cell is no
// error.
func (s *releases) release(uid types.UID, why string, podEnded bool) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[s.table.byPod[uid]]
	cause := CausePodDeleted
	if podEnded {
		cause = CausePodEnded
	}
	if ok && e.beginEnd(cause, why) {
		s.loop.queue.Add(e.id)
	}
}

// vanished lets a pod's cell go of which nobody has seen that it was deleted: the
// API server may have lost it. It returns false while the end of a cell that runs the pod
// is held back.
func (s *releases) vanished(ctx context.Context, uid types.UID, why string) bool {
	s.table.mu.Lock()
	e, ok := s.table.byID[s.table.byPod[uid]]
	runs := ok && e.ending == "" && (e.binding || e.cell().Phase == apiv1.Bound)
	s.table.mu.Unlock()
	if !runs {
		s.release(uid, why, false)
		return true
	}
	end := unrequested(e.cell(), why)
	if !s.holds.admit(ctx, e, end, s.holds.population()) {
		return false
	}
	s.release(uid, why, false)
	return true
}

// unbound lets a pod's cell go if its kubelet has not seen the pod. From
// then on the kubelet cannot see the pod. It returns false when the cell is bound:
// the kubelet then ends the pod.
func (s *releases) unbound(uid types.UID, why string) bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[s.table.byPod[uid]]
	if !ok {
		return true
	}
	if e.binding || e.cell().Phase == apiv1.Bound || e.cell().Phase == apiv1.Draining {
		return false
	}
	if e.beginEnd(CausePodDeleted, why) {
		s.loop.queue.Add(e.id)
	}
	return true
}
