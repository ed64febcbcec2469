package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"k8s.io/utils/clock"
)

var _ = []preparation{
	(*exclusiveBind)(nil), unlessStopped{}, (*keptAgents)(nil), (*renaming)(nil), (*reconnecting)(nil), (*evacuating)(nil),
	(*disks)(nil), (*routes)(nil), (*plugins)(nil), (*hugePages)(nil), (*devices)(nil), (*kernels)(nil),
}

// binding gives ready cells their pods.
type binding struct {
	table        *table
	clock        clock.PassiveClock
	records      *records
	idling       *idling
	ends         *cellEnds
	preparations preparations
}

// Step gives the cell its pod, once and for good. A standby cell without a pod is
// kept connected until a pod takes the cell.
func (s *binding) Step(ctx context.Context, e *entry) (progress, error) {
	got, err := s.preparations.prepare(ctx, e)
	if err != nil || got.waits() {
		return got, err
	}
	prepared := got == done
	ending, cause := s.decide(e, prepared)
	switch {
	case ending != "":
		return done, s.ends.startTerminating(ctx, e, cellEnd{cause: cause, evidence: ending})
	case e.cell().Stopped:
		return s.idling.stopOrStart(ctx, e)
	case !prepared:
		return anew, nil // what it was to end or to stop for is over
	case !e.binding:
		return s.idling.idle(ctx, e)
	}
	return done, s.bind(ctx, e)
}

// decide returns why a cell is to end; otherwise it notes whether the cell is given its pod now. From then on its kubelet may see the pod.
// Whoever lets the cell go must know that: both decide under the table's lock.
func (s *binding) decide(e *entry, prepared bool) (ending string, cause Cause) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e.binding = prepared && e.ending == "" && e.cell().Pod.UID != "" && !e.cell().Stopped
	return e.ending, e.cause
}

// bind stores that a cell runs its pod, and then shows its kubelet the pod.
func (s *binding) bind(ctx context.Context, e *entry) error {
	if err := s.records.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepBound, s.clock.Now())
		return cell.enter(apiv1.Bound)
	}); err != nil {
		return err
	}
	return e.show()
}
