package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"k8s.io/utils/clock"
)

var _ = []preparation{
	(*exclusiveBind)(nil), unlessStopped{}, (*keptAgents)(nil), (*renaming)(nil), (*reconnecting)(nil), (*evacuating)(nil),
	(*disks)(nil), (*routes)(nil), (*plugins)(nil), (*devices)(nil), (*kernels)(nil),
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
	prepared := got.state == isDone
	// From here on the kubelet of a prepared cell may see the pod. Whoever lets the cell go must know:
	// both decide under the table's lock.
	s.table.mu.Lock()
	why, cause, pod := e.ending, e.cause, e.cell().Pod
	e.binding = prepared && why == "" && pod.UID != "" && !e.cell().Stopped
	s.table.mu.Unlock()
	if why != "" {
		return done, s.ends.startTerminating(ctx, e, cellEnd{cause: cause, evidence: why})
	}
	if e.cell().Stopped {
		return s.idling.stopOrStart(ctx, e)
	}
	if !prepared {
		return anew, nil // what it was to end or to stop for is over
	}
	if pod.UID == "" {
		return s.idling.idle(ctx, e)
	}
	if err := s.records.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepBound, s.clock.Now())
		return cell.enter(apiv1.Bound)
	}); err != nil {
		return progress{}, err
	}
	return done, e.show()
}
