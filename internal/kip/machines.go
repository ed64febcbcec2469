package kip

import (
	"cmp"
	"context"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/store"
	"k8s.io/apimachinery/pkg/types"
)

// machinesAge is how old what a replica that stands by has read of the stored cells may be: it
// reads all of them at once, and anybody who reaches the webhook may ask.
const machinesAge = 5 * time.Second

// machines are those of the cells of pods: the cells' own where this process leads, else the
// stored ones.
type machines struct {
	process *process
	own     *store.Store

	mu   sync.Mutex
	read time.Time // when the stored ones were
	of   map[types.UID]admission.Machine
}

// Of returns the machine of the cell of a pod; false where it has none, or none that is known yet.
func (m *machines) Of(ctx context.Context, pod types.UID) (admission.Machine, bool, error) {
	if leads := m.process.role.leading.Load(); leads != nil {
		cell, has := leads.cells.controller.ForPod(pod)
		return m.machine(cell), has && runsPod(cell), nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.process.clock.Now(); m.read.IsZero() || now.Sub(m.read) >= machinesAge {
		of := map[types.UID]admission.Machine{}
		err := cells.Stored(ctx, m.own, func(cell cells.Cell) {
			if runsPod(cell) {
				of[cell.Pod.UID] = m.machine(cell)
			}
		})
		// A store that does not answer is left alone for as long as an answer is kept: others wait for the lock.
		m.of, m.read = of, now
		if err != nil {
			m.of = nil
			return admission.Machine{}, false, err
		}
	}
	machine, has := m.of[pod]
	return machine, has, nil
}

// runsPod reports whether a cell is its pod's for good: before that, it may get another machine.
func runsPod(cell cells.Cell) bool { return cell.Pod.UID != "" && cell.Phase == apiv1.Bound }

// machine is what a pod can have of a cell: what the machine has, or as long as nobody has said
// that, what its type promises, without the cell's own part.
func (m *machines) machine(cell cells.Cell) admission.Machine {
	offering := cell.Offering()
	room := cmp.Or(cell.Measured, catalog.Resources{MilliCPU: offering.MilliCPU, MemoryBytes: offering.MemoryBytes})
	return admission.Machine{
		Type:        offering.InstanceType,
		MilliCPU:    room.MilliCPU,
		MemoryBytes: room.MemoryBytes - m.process.cfg.Cells.ReservedMemory.Value(),
	}
}
