package cells

import (
	"context"
	"errors"
	"sync"
)

// errUnderWay: what a step needs is being done. The cell is woken when it has ended,
// and the step goes on from there.
var errUnderWay = errors.New("it is being done")

// What is done aside, where it matters to others.
const (
	attachesDisks  = "attach"
	startsInstance = "start"
	drains         = "drain"
)

// aside is something slow that is done for a cell while its worker sees to others: a
// call to the cloud, or to the cell's agent. A cell has one at a time.
type aside struct {
	what   string
	cancel context.CancelFunc
	ended  bool
	err    error
}

// asides are what is done aside for a cell: one thing at a time.
type asides struct {
	mu  sync.Mutex
	now *aside
}

// aside does something slow for a cell. It returns errUnderWay until that has ended,
// and then its outcome, once. While something else is being done for the cell, that
// goes first; its outcome is forgotten, and whoever wants it asks again.
func (l *loop) aside(ctx context.Context, e *entry, what string, do func(context.Context) error) error {
	e.asides.mu.Lock()
	defer e.asides.mu.Unlock()
	if a := e.asides.now; a != nil {
		if !a.ended {
			return errUnderWay
		}
		e.asides.now = nil
		if a.what == what {
			return a.err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &aside{what: what, cancel: cancel}
	e.asides.now = a
	l.inTurn(ctx, what, func(ctx context.Context) {
		defer cancel()
		err := do(ctx)
		e.asides.mu.Lock()
		a.ended, a.err = true, err
		e.asides.mu.Unlock()
		l.queue.Add(e.id)
	})
	return errUnderWay
}

// is says that something is being done for a cell, or has ended and nobody has its
// outcome yet.
func (s *asides) is(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now != nil && s.now.what == what
}

// waitsFor is what is being done for a cell; "" for nothing.
func (s *asides) waitsFor() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil || s.now.ended {
		return ""
	}
	return s.now.what
}

// drop ends what is being done for a cell, unless it is what is named: nobody
// waits for it any more.
func (s *asides) drop(but string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil && s.now.what != but {
		s.now.cancel()
		s.now = nil
	}
}
