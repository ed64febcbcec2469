package cells

import (
	"context"
	"errors"
	"sync"
)

// errUnderWay: what a step needs is being done. The cell is woken when it has ended,
// and the step goes on from there.
var errUnderWay = errors.New("it is being done")

// The operations whose names matter to others.
const (
	attachesDisks  = "attach"
	startsInstance = "start"
	drains         = "drain"
)

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

// async does something slow for a cell. It returns errUnderWay until that has ended,
// and then its outcome, once. Another operation of the cell goes first; its outcome is
// forgotten, and whoever wants it asks again.
func (l *loop) async(ctx context.Context, e *entry, what string, do func(context.Context) error) error {
	e.async.mu.Lock()
	defer e.async.mu.Unlock()
	if a := e.async.now; a != nil {
		if !a.ended {
			return errUnderWay
		}
		e.async.now = nil
		if a.what == what {
			return a.err
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
	return errUnderWay
}

// has reports whether an operation goes on, or has ended and nobody has its outcome yet.
func (s *asyncOps) has(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now != nil && s.now.what == what
}

// waitsFor is what is being done for a cell; "" for nothing.
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
