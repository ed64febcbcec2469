package cells

import (
	"log/slog"

	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
)

// reporter reports what becomes of cells to the owners of their pods, and of what no pod has in the log.
type reporter struct {
	pods Recorder
	log  *slog.Logger
}

// report reports an event on the cell's pod; in the log, where it has none.
func (r *reporter) report(cell *Cell, e events.Event) {
	if cell.Pod.UID == "" {
		r.log.Info(e.Message, "cell", cell.ID, "standby", cell.Standby, "reason", e.Reason)
		return
	}
	r.pods.Event(cell.Pod, e)
}

// reportEnd reports on the pod of an end; in the log, where it has none.
func (r *reporter) reportEnd(end guard.End, e events.Event) {
	r.log.Warn(e.Message, "instance", end.Instance, "cell", end.Cell, "pod", end.Pod.String(), "reason", e.Reason)
	if end.Pod.UID != "" {
		r.pods.Event(end.Pod, e)
	}
}

// reportHeld reports an end that the guard holds back.
func (r *reporter) reportHeld(end guard.End, why *guard.HeldError) {
	r.reportEnd(end, events.NewEndHeldBack(end.Instance, end.Why, why.Text, why.Reason != guard.ByStore))
}

// nodeReporter tells the operator, on Kip's virtual node, what holds up launches.
type nodeReporter struct {
	events NodeEvents // nil for nobody
	node   string
}

func (r nodeReporter) listens() bool { return r.events != nil }

func (r nodeReporter) report(e events.Event) { r.events.Event(r.node, e) }
