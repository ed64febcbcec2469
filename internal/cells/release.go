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
	if s.table.keptLocked(e.pod.Namespace) >= most {
		return e
	}
	e.keepUntil = s.loop.clock.Now().Add(keep)
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
	if (!e.keepUntil.IsZero() || e.cell().Kept()) && !e.keepOver {
		e.keepOver = true
		s.loop.queue.Add(e.id)
	}
}

// vanished is Controller.ReleaseVanished.
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

// unbound is Controller.ReleaseUnbound.
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
	s.ends.beginLocked(e, cellEnd{cause: CausePodDeleted, evidence: why})
	return true
}
