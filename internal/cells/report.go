package cells

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// warn reports an event of type Warning on the cell's pod.
func (c *Controller) warn(cell *Cell, reason, format string, args ...any) {
	c.report(cell, warning, reason, fmt.Sprintf(format, args...))
}

// report reports an event on the cell's pod; in the log, where it has none.
func (c *Controller) report(cell *Cell, kind, reason, message string) {
	if cell.Pod.UID == "" {
		c.cfg.Log.Info(message, "cell", cell.ID, "standby", cell.Standby, "reason", reason)
		return
	}
	c.cfg.Events.Event(cell.Pod, kind, reason, message)
}
