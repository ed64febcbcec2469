package cells

import (
	"context"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// connection is what this process has of a cell's agent and kubelet at one moment. It is a value: nothing changes in one that was read.
type connection struct {
	api        API    // that the cell sees; nil before it is served
	node       string // the virtual node that api is of
	shown      bool   // api shows the pod
	session    agentSession
	connecting time.Time          // when this process began to connect; it stays when the session is closed
	stopWait   context.CancelFunc // of the goroutine that waits for the kubelet
	configured bool               // the agent has its configuration, on this session
	breaks     int                // how often the session has not been connected
}

// liveConnection has the connection of a cell as it is now. It has a lock of its own, below all others, so that anybody may read or
// change it at any time. Who decides by several fields takes one copy. Only connections opens and closes it, for the cell's worker.
type liveConnection struct {
	mu  sync.Mutex
	now connection
}

// connection returns what this process has of the cell's agent and kubelet now.
func (l *liveConnection) connection() connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// session returns the session with the agent; the zero one if there is none.
func (l *liveConnection) session() agentSession { return l.connection().session }

// api returns the API that the cell sees; nil if none is served.
func (l *liveConnection) api() API { return l.connection().api }

// change changes the connection.
func (l *liveConnection) change(do func(*connection)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do(&l.now)
}

// serve notes the API that the cell sees, of a virtual node.
func (l *liveConnection) serve(api API, node string) {
	l.change(func(c *connection) { c.api, c.node = api, node })
}

// open notes the session with the agent, and when this process began to connect.
func (l *liveConnection) open(session Session, stopWait context.CancelFunc, now time.Time) {
	l.change(func(c *connection) { c.session, c.stopWait, c.connecting = agentSession{session}, stopWait, now })
}

// close forgets the session and the API, and returns what was there.
func (l *liveConnection) close() (was connection) {
	l.change(func(c *connection) {
		was = *c
		// A break: what is asked on this session yet says nothing of the next one.
		*c = connection{node: was.node, connecting: was.connecting, breaks: was.breaks + 1}
	})
	return was
}

// noteBreak notes that the session is not connected.
func (l *liveConnection) noteBreak() {
	l.change(func(c *connection) {
		c.configured = false
		c.breaks++
	})
}

// noteConfigured notes that the agent has its configuration, on a session that has had so many breaks. It reports whether that is so
// yet: otherwise the break has queued the cell again.
func (l *liveConnection) noteConfigured(breaks int) (is bool) {
	l.change(func(c *connection) {
		is = c.breaks == breaks
		c.configured = c.configured || is
	})
	return is
}

// noteConnected notes whether the agent is connected: one that is not has its configuration no more. It returns the connection as it is
// then.
func (l *liveConnection) noteConnected(is bool) (now connection) {
	l.change(func(c *connection) {
		c.configured = c.configured && is
		now = *c
	})
	return now
}

// show lets the kubelet of a bound cell see its pod, once.
func (l *liveConnection) show(cell *Cell) error {
	c := l.connection()
	if cell.Kept() {
		c.api.KeepPod() // first: its kubelet removes what is left of a pod that it hears is gone
	}
	if c.shown || cell.Phase != apiv1.Bound && cell.Phase != apiv1.Draining {
		return nil
	}
	c.api.Reserve(pluginRequests(cell.Plugins), driversBeside(cell.Plugins))
	err := c.api.Bind(cell.Pod.Namespace, cell.Pod.Name, cell.Pod.UID)
	l.change(func(c *connection) { c.shown = err == nil })
	return err
}
