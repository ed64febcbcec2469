package cells

import (
	"cmp"
	"context"
	"sync"
)

// The operations, with those of routes.go.
const (
	attachesDisks  = "attach"
	handsOverDisks = "hand over disks"
	givesPlugins   = "plug"
	setsKernel     = "set the kernel"
	configures     = "configure"
	startsInstance = "start"
	stopsInstance  = "stop"
	drains         = "drain"
)

// waitsOfOps are what cells wait for while the operations go on, for people.
var waitsOfOps = map[string]string{
	attachesDisks:  "the cloud has not attached its disks yet",
	handsOverDisks: "its agent has not taken its disks yet",
	givesPlugins:   "its agent has not taken its CSI drivers yet",
	setsKernel:     "its agent has not set its kernel yet",
	configures:     "its agent has not taken its configuration yet",
	startsInstance: "the cloud has not started its instance yet",
	stopsInstance:  "the cloud has not stopped its instance yet",
	drains:         "its pod's logs and volumes are not saved yet",
	makesRoutes:    "the cloud has not routed the networks of its pod to it yet",
	removesRoutes:  "the cloud has not removed its routes yet",
}

// asyncOp is something slow that is done for a cell while its worker serves others: a
// call to the cloud, or to the cell's agent. A cell has one at a time.
type asyncOp struct {
	what   string
	cancel context.CancelFunc
	ended  bool
	err    error
}

// asyncOps are the operations of a cell: one at a time.
type asyncOps struct {
	mu  sync.Mutex
	now *asyncOp
}

// async does something slow for a cell. It is under way until that has ended, which wakes the cell. Then async is done, once, and returns
// the outcome. Another operation of the cell goes first; its outcome is forgotten, and whoever wants it asks again.
func (l *loop) async(ctx context.Context, e *entry, what string, do func(context.Context) error) (progress, error) {
	e.async.mu.Lock()
	defer e.async.mu.Unlock()
	if a := e.async.now; a != nil {
		if !a.ended {
			return underWay(cmp.Or(waitsOfOps[a.what], a.what)), nil
		}
		e.async.now = nil
		if a.what == what {
			return done, a.err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &asyncOp{what: what, cancel: cancel}
	e.async.now = a
	l.spawn(ctx, what, func(ctx context.Context) {
		defer cancel()
		err := do(ctx)
		e.async.mu.Lock()
		a.ended, a.err = true, err
		e.async.mu.Unlock()
		l.queue.Add(e.id)
	})
	return underWay(cmp.Or(waitsOfOps[what], what)), nil
}

// has reports whether an operation goes on, or has ended and nobody has its outcome yet.
func (s *asyncOps) has(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now != nil && s.now.what == what
}

// waitsFor returns what is being done for a cell; "" for nothing.
func (s *asyncOps) waitsFor() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil || s.now.ended {
		return ""
	}
	return s.now.what
}

// drop ends what is being done for a cell, unless it is what is named: nobody
// waits for it any more.
func (s *asyncOps) drop(but string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil && s.now.what != but {
		s.now.cancel()
		s.now = nil
	}
}
