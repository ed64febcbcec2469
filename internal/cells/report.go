package cells

import (
	"fmt"
	"log/slog"

	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/gate"
	corev1 "k8s.io/api/core/v1"
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// reporter reports what becomes of cells to the owners of their pods, and of what no pod has in the log.
type reporter struct {
	pods Recorder
	log  *slog.Logger
}

// warn reports an event of type Warning on the cell's pod.
func (r *reporter) warn(cell *Cell, reason, format string, args ...any) {
	r.report(cell, events.Event{Type: warning, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// report reports an event on the cell's pod; in the log, where it has none.
func (r *reporter) report(cell *Cell, e events.Event) {
	if cell.Pod.UID == "" {
		r.log.Info(e.Message, "cell", cell.ID, "standby", cell.Standby, "reason", e.Reason)
		return
	}
	r.pods.Event(cell.Pod, e.Type, e.Reason, e.Message)
}

// tellEnd reports on the pod of an end; in the log, where it has none.
func (r *reporter) tellEnd(e gate.End, reason, message string) {
	r.log.Warn(message, "instance", e.Instance, "cell", e.Cell, "pod", e.Pod.String(), "reason", reason)
	if e.Pod.UID != "" {
		r.pods.Event(e.Pod, warning, reason, message)
	}
}

// tellHeld reports an end that the gate holds back.
func (r *reporter) tellHeld(e gate.End, why *gate.HeldError) {
	message := fmt.Sprintf("Instance %s is not ended, although %s: %s", e.Instance, e.Why, why)
	if why.Reason != gate.ByStore {
		message += ". kipctl allow lets it end"
	}
	r.tellEnd(e, events.EndHeldBack, message)
}

// nodeReporter tells the operator, on Kip's virtual node, what holds up launches.
type nodeReporter struct {
	events NodeEvents // nil for nobody
	node   string
}

func (r nodeReporter) listens() bool { return r.events != nil }

func (r nodeReporter) event(kind, reason, message string) {
	r.events.Event(r.node, kind, reason, message)
}
