package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// connection is what this process has of a cell's agent and kubelet. It is under table.mu. The methods below alone change it. Only the
// cell's worker replaces api and session, and reads them without the lock; while draining has logs saved, only that does, and the worker
// waits for it.
type connection struct {
	api        API
	node       string // the virtual node that api is of
	shown      bool   // api shows the pod; of the worker
	session    agentSession
	connecting time.Time          // when this process began to connect
	stopWait   context.CancelFunc // of the goroutine that waits for the kubelet
	configured bool               // the agent has its configuration, on this connection
	breaks     int                // how often the session has not been connected
}

// serveLocked notes the API that the cell sees, of a virtual node.
func (c *connection) serveLocked(api API, node string) { c.api, c.node = api, node }

// openLocked notes the session with the agent, and when this process began to connect.
func (c *connection) openLocked(session Session, stopWait context.CancelFunc, now time.Time) {
	c.session, c.stopWait, c.connecting = agentSession{session}, stopWait, now
}

// closeLocked forgets the session and the API, and returns what was there.
func (c *connection) closeLocked() (was connection) {
	was = *c
	c.session, c.stopWait, c.api, c.shown = agentSession{}, nil, nil, false
	c.breakLocked() // what is asked on this session yet says nothing of the next one
	return was
}

// breakLocked notes that the session is not connected.
func (c *connection) breakLocked() {
	c.configured = false
	c.breaks++
}

// configureLocked notes that the agent has its configuration, on a session that has had so many breaks. It reports whether that is so
// yet: otherwise the break has queued the cell again.
func (c *connection) configureLocked(breaks int) bool {
	if c.breaks != breaks {
		return false
	}
	c.configured = true
	return true
}

// isConfiguredLocked reports whether the agent has its configuration. One that is not connected has it no more.
func (c *connection) isConfiguredLocked(connected bool) bool {
	c.configured = c.configured && connected
	return c.configured
}

// show lets the kubelet of a bound cell see its pod.
func (c *connection) show(cell *Cell) error {
	if cell.Kept() {
		c.api.KeepPod() // first: its kubelet removes what is left of a pod that it hears is gone
	}
	if c.shown || cell.Phase != apiv1.Bound && cell.Phase != apiv1.Draining {
		return nil
	}
	c.api.Reserve(pluginRequests(cell.Plugins), driversBeside(cell.Plugins))
	err := c.api.Bind(cell.Pod.Namespace, cell.Pod.Name, cell.Pod.UID)
	c.shown = err == nil
	return err
}
