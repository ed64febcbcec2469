package cells

import (
	"fmt"

	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// warn reports an event of type Warning on the cell's pod.
func (c *Controller) warn(cell *Cell, reason, format string, args ...any) {
	c.report(cell, events.Event{Type: warning, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// report reports an event on the cell's pod; in the log, where it has none.
func (c *Controller) report(cell *Cell, e events.Event) {
	if cell.Pod.UID == "" {
		c.cfg.Log.Info(e.Message, "cell", cell.ID, "standby", cell.Standby, "reason", e.Reason)
		return
	}
	c.cfg.Events.Event(cell.Pod, e.Type, e.Reason, e.Message)
}
