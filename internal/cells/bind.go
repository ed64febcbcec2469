package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// preparation gives a ready cell something before its kubelet sees the pod. It returns true when
// the cell has it, and as well when something else is to be done with the cell first.
type preparation interface {
	prepare(ctx context.Context, e *entry) (ready bool, again time.Duration, err error)
}

var _ = []preparation{(*keptAgents)(nil), (*renaming)(nil), (*disks)(nil), (*routes)(nil), (*plugins)(nil), (*devices)(nil)}

// binding gives ready cells their pods.
type binding struct {
	table         *table
	loop          *loop
	records       *records
	inventory     *inventory
	lineage       *lineage
	exclusion     *exclusion
	connections   *connections
	interruptions *interruptions
	idling        *idling
	ends          *ends
	preparations  []preparation // in their order
}

// Step gives the cell its pod, once and for good. A standby cell without a pod is
// kept connected until a pod takes the cell.
func (s *binding) Step(ctx context.Context, e *entry) (time.Duration, error) {
	// A cell that was launched for its pod was not before nobody else ran the pod.
	if cell := e.cell(); cell.Standby != "" && cell.Pod.UID != "" && !s.exclusion.nobodyElseRuns(e) {
		if why, _ := s.table.endingOf(e); why == "" {
			s.inventory.pollSoon()
			return time.Second, nil
		}
	}
	if why, _ := s.table.endingOf(e); why == "" && s.lineage.mayRunMore(e) {
		return time.Second, nil
	}
	for _, p := range s.preparations {
		if ready, again, err := p.prepare(ctx, e); err != nil || !ready {
			return again, err
		}
	}
	if why, _ := s.table.endingOf(e); why == "" && !e.cell().Stopped {
		if err := s.connections.connect(ctx, e); err != nil {
			return 0, err
		}
	}
	// From here on the kubelet may see the pod. Whoever lets the cell go must know:
	// both decide under the table's lock.
	s.table.mu.Lock()
	why, pod := e.ending, e.cell().Pod
	e.binding = why == "" && pod.UID != "" && !e.cell().Stopped
	s.table.mu.Unlock()
	if why != "" {
		return 0, s.ends.startTerminating(ctx, e, why)
	}
	if e.cell().Stopped {
		return s.idling.stopOrStart(ctx, e)
	}
	if _, ends := s.interruptions.interrupted(ctx, e); ends {
		return 0, nil
	}
	if pod.UID == "" {
		return s.idling.idle(ctx, e)
	}
	if err := s.records.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepBound, s.loop.clock.Now())
		return cell.enter(apiv1.Bound)
	}); err != nil {
		return 0, err
	}
	return 0, e.show()
}
