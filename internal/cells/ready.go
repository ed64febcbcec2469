package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
)

// readying makes cells Ready whose kubelets are.
type readying struct {
	clock     clock.PassiveClock
	records   *records
	observers *observers
	failures  *bootFailures
	reserved  int64 // bytes of memory that are the cell's own
}

var _ preparation = (*readying)(nil)

// prepare makes a cell Ready whose kubelet is, or ends one whose machine is too small for
// its pod: its kubelet would refuse the pod, or the kernel end it.
func (s *readying) prepare(ctx context.Context, e *entry) (progress, error) {
	cell := e.cell()
	measured, isNew := cell.Measured, false
	if measured.None() {
		measured = measure(e.api().Node(), cell.Offering())
		isNew = !measured.None()
	}
	short := tooSmall(measured, cell.Needs, s.reserved)
	err := s.records.save(ctx, e, func(cell *Cell) error {
		cell.Measured = measured
		if short {
			return nil
		}
		now := s.clock.Now()
		cell.step(apiv1.StepReady, now)
		if !cell.Boot.Told.IsZero() && !cell.Boot.Told.Before(cell.launched()) {
			cell.Boot.Ready = now
		}
		return cell.enter(apiv1.Ready)
	})
	if err != nil {
		return progress{}, err
	}
	if isNew {
		s.observers.CellMeasured(*e.cell())
	}
	if !short {
		return done, nil
	}
	need := cell.Needs
	why := events.MachineTooSmall(cell.Offering().String(), resourcesText(measured), resourcesText(need),
		resource.NewQuantity(s.reserved, resource.BinarySI).String())
	return leave, s.failures.endTooSmall(ctx, e, why)
}
