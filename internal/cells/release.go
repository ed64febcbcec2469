package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	"k8s.io/apimachinery/pkg/types"
)

// releases lets go of the cells of pods that no longer need them.
type releases struct {
	table  *table
	loop   *loop
	holds  *holds
	ends   *cellEnds
	events *reporter
	cells  perCell[releaseState] // under table.mu
}

// releaseState is what is decided of a cell that its pod may let go.
type releaseState struct {
	binding   bool      // it is being bound: its kubelet may see the pod
	keepUntil time.Time // until when the cell of a failed pod stays
	keepOver  bool      // nobody wants that any more
}

// beginBinding reports whether a cell is bound now: if it is prepared for a pod, still has that pod, and is neither stopped nor to end.
// Otherwise ending may be why it is to end. From then on its kubelet may see the pod. Whoever lets the cell go must know that: both
// decide under one lock.
func (s *releases) beginBinding(e *entry, pod types.UID, prepared bool) (binds bool, ending string, cause Cause) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	cell := e.cell()
	binds = prepared && e.ending == "" && pod != "" && cell.Pod.UID == pod && !cell.Stopped
	s.cells.of(e).binding = binds
	return binds, e.ending, e.cause
}

// endAndKeep returns why a cell must end, "" if it need not, and the kind of that, and until when it is to stay all the same.
func (s *releases) endAndKeep(e *entry) (why string, cause Cause, keepUntil time.Time) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return e.ending, e.cause, s.cells.of(e).keepUntil
}

// keepOver reports whether nobody wants any more that the cell of a failed pod stays.
func (s *releases) keepOver(e *entry) bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.cells.of(e).keepOver
}

// keptLocked returns how many cells of failed pods a namespace keeps, or is about to. The caller holds table.mu.
func (s *releases) keptLocked(namespace string) (n int) {
	for e := range s.table.byNamespace[namespace] {
		state := s.cells.of(e)
		if cell := e.cell(); !state.keepOver && (cell.Kept() || cell.Live() && !state.keepUntil.IsZero()) {
			n++
		}
	}
	return n
}

// release is Controller.Release.
func (s *releases) release(uid types.UID, why string, podEnded bool) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[s.table.byPod[uid]]
	if !ok {
		return
	}
	cause := CausePodDeleted
	if podEnded {
		cause = CausePodEnded
		s.endKeptLocked(e)
	}
	s.ends.beginLocked(e, cellEnd{cause: cause, evidence: why})
}

// failed is Controller.ReleaseFailed.
func (s *releases) failed(uid types.UID, why string, keep time.Duration, most int) {
	if e := s.endOrKeep(uid, why, keep, most); e != nil {
		s.events.report(e.cell(), events.NewTooManyKept(e.id, e.cell().Pod.Namespace, most))
	}
}

// endOrKeep does so, and returns the cell if it is not kept since its namespace keeps so many already; else nil.
func (s *releases) endOrKeep(uid types.UID, why string, keep time.Duration, most int) (notKept *entry) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[s.table.byPod[uid]]
	if !ok || !s.ends.beginLocked(e, cellEnd{cause: CausePodEnded, evidence: why}) {
		return nil
	}
	if s.keptLocked(e.pod.Namespace) >= most {
		return e
	}
	s.cells.of(e).keepUntil = s.loop.clock.Now().Add(keep)
	return nil
}

// endAllKept has no cell of a failed pod stay any longer.
func (s *releases) endAllKept() {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, e := range s.table.byID {
		s.endKeptLocked(e)
	}
}

// endKeptLocked has a cell that is kept not stay any longer. The caller holds table.mu.
func (s *releases) endKeptLocked(e *entry) {
	state := s.cells.of(e)
	if (!state.keepUntil.IsZero() || e.cell().Kept()) && !state.keepOver {
		state.keepOver = true
		s.loop.queue.Add(e.id)
	}
}

// vanished is Controller.ReleaseVanished.
func (s *releases) vanished(ctx context.Context, uid types.UID, why string) bool {
	s.table.mu.Lock()
	e, ok := s.table.byID[s.table.byPod[uid]]
	runs := ok && e.ending == "" && (s.cells.of(e).binding || e.cell().Phase == apiv1.Bound)
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

// unbound is Controller.ReleaseUnbound.
func (s *releases) unbound(uid types.UID, why string) bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, ok := s.table.byID[s.table.byPod[uid]]
	if !ok {
		return true
	}
	if s.cells.of(e).binding || e.cell().Phase == apiv1.Bound || e.cell().Phase == apiv1.Draining {
		return false
	}
	s.ends.beginLocked(e, cellEnd{cause: CausePodDeleted, evidence: why})
	return true
}
