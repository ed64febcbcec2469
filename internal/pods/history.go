package pods

import (
	"slices"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
)

// past is what a pod's earlier cells have shown.
type past struct {
	attempts  int    // cells that were requested
	failures  int    // cells in a row that were launched and not ready, or refused for what the pod asks
	refusal   string // why the last of them was refused; "" if it was launched
	ran       bool   // a kubelet has had the pod
	cameLater bool   // it came after its node's pods were listed, and no kubelet had had it then
	lacked    lacked // what the machine of its last cell that was too small had not
}

// lacked is what a pod needs more than its own, since a machine was too small for it: at least what that had less than its type promises.
type lacked struct {
	catalog.Resources
	why string
}

// history keeps what each pod's earlier cells have shown.
type history struct{ *notes[past] }

// bound notes that a kubelet has had the pod. It is noted before the cell's end is: whoever finds no cell then knows it.
func (h *history) bound(cell cells.Cell) {
	h.note(cell.Pod, func(p *past) { p.ran = true })
}

// cellGone learns from the end of a pod's cell.
func (h *history) cellGone(cell cells.Cell) {
	h.note(cell.Pod, func(p *past) {
		switch {
		case !cell.StepTime(apiv1.StepBound).IsZero():
			p.ran, p.failures = true, 0
		case cell.Cause == cells.CauseTooSmall:
			promised := catalog.Resources{MilliCPU: cell.Offering().MilliCPU, MemoryBytes: cell.Offering().MemoryBytes}
			p.lacked = lacked{Resources: promised.Sub(cell.Measured), why: cell.Reason}
			if len(cell.HugePages) > 0 { // it may have had the memory, not in one piece: more than was promised is asked for
				p.lacked.MemoryBytes = max(p.lacked.MemoryBytes, promised.MemoryBytes-cell.Needs.MemoryBytes+1)
			}
		case slices.Contains([]cells.Cause{cells.CauseUnfit, cells.CauseNoDisk, cells.CauseNoRoute, cells.CauseKernelRefused}, cell.Cause):
			// No fault of the pod's, or of its annotations, which can change: it waits for who mends it.
		case cell.Instance != nil && cell.Interrupted.IsZero() && cell.Cause != cells.CauseInterrupted:
			p.failures, p.refusal = p.failures+1, ""
		case cell.Cause == cells.CauseNotLaunched && cell.Refusals > 0:
			p.failures, p.refusal = p.failures+1, cell.Reason
		}
	})
}
