package cells

import (
	"cmp"
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
)

// binding gives ready cells their pods.
type binding struct {
	records      *records
	idling       *idling
	ends         *cellEnds
	releases     *releases
	preparations preparations
	waits        *bindWaits // of the preparations
}

// Step gives the cell its pod, once and for good. A standby cell without a pod is
// kept connected until a pod takes the cell.
func (s *binding) Step(ctx context.Context, e *entry) (progress, error) {
	pod := e.cell().Pod.UID // that it is prepared for: a pod may take a standby cell meanwhile
	got, err := s.preparations.prepare(ctx, e)
	if err != nil || got.waits() {
		return got, err
	}
	prepared := got.isDone()
	binds, ending, cause := s.releases.beginBinding(e, pod, prepared)
	switch {
	case ending != "":
		return done, s.ends.startTerminating(ctx, e, cellEnd{cause: cause, evidence: ending})
	case e.cell().Stopped:
		return s.idling.stopOrStart(ctx, e)
	case !prepared || e.cell().Pod.UID != pod:
		return anew, nil // what it was to end or to stop for is over, or a pod took it
	case !binds:
		return s.idling.idle(ctx, e)
	}
	return done, s.bind(ctx, e)
}

// bind stores that a cell runs its pod, and then shows its kubelet the pod.
func (s *binding) bind(ctx context.Context, e *entry) error {
	if err := s.records.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepBound, s.records.clock.Now())
		return cell.enter(apiv1.Bound)
	}); err != nil {
		return err
	}
	return e.show()
}

// waitsForLocked returns what a ready cell waits for: what its preparations say, else what they have reported last. The caller holds
// table.mu.
func (s *binding) waitsForLocked(e *entry) string {
	return cmp.Or(s.preparations.waitsForLocked(e), s.idling.waitsForLocked(e), s.waits.lastReportedLocked(e))
}
