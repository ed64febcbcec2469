package cells

import (
	"context"
	"errors"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/internal/watchdog"
)

// agentSession is the session of this process with a cell's agent; the zero value is none. Only connections opens and closes one, and
// nobody else looks into it. A copy is that very session: who asks an agent aside takes one along, and two are equal if they are the same.
type agentSession struct{ tunnel Session }

// opened reports whether there is one, connected or not.
func (s agentSession) opened() bool { return s.tunnel != nil }

// connected reports whether the agent is connected now.
func (s agentSession) connected() bool { return s.opened() && s.tunnel.Connected() }

// cutOff reports whether there is one that is not connected.
func (s agentSession) cutOff() bool { return s.opened() && !s.tunnel.Connected() }

// ready waits until the agent is connected, or ctx ends: false.
func (s agentSession) ready(ctx context.Context) bool {
	defer watchdog.Wait(ctx, watchdog.Cell)()
	select {
	case <-s.tunnel.Ready():
		return true
	case <-ctx.Done():
		return false
	}
}

// lastError returns why the agent was not connected last; nil where there is no session.
func (s agentSession) lastError() error {
	if !s.opened() {
		return nil
	}
	return s.tunnel.LastError()
}

// refusal returns why a cell that is there does not obey this process: another Kip has connected
// to it since, or it knows a CA that is not in the store. It may run a pod for that Kip.
// Nil if it does.
func (s agentSession) refusal() error {
	err := s.lastError()
	if followed, is := errors.AsType[*tunnel.FollowedError](err); is {
		return followed
	}
	if rotated, is := errors.AsType[*tunnel.RotatedError](err); is {
		return rotated
	}
	return nil
}

// lastHeard returns when the agent was last heard; zero where there is no session.
func (s agentSession) lastHeard() time.Time {
	if !s.opened() {
		return time.Time{}
	}
	return s.tunnel.LastHeard()
}

// heldBack returns until when Kip kept the cell waiting; zero where there is no session.
func (s agentSession) heldBack() time.Time {
	if !s.opened() {
		return time.Time{}
	}
	return s.tunnel.HeldBack()
}

// ca returns the hash of the CA by which the cell knows Kip; "" where there is no session.
func (s agentSession) ca() string {
	if !s.opened() {
		return ""
	}
	return s.tunnel.CA()
}

// trust has the cell know Kip by other CAs.
func (s agentSession) trust(ctx context.Context) error { return s.tunnel.Trust(ctx) }

// conn is for requests to the agent, and streams for those that last. There is a session.
func (s agentSession) conn() agentapi.Conn    { return s.tunnel.Conn() }
func (s agentSession) streams() agentapi.Conn { return s.tunnel.Streams() }

// close ends it, if there is one.
func (s agentSession) close() {
	if s.opened() {
		s.tunnel.Close()
	}
}
