package cells

import (
	"context"
	"errors"
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

// aside does something slow for a cell. It returns errUnderWay until that has ended,
// and then its outcome, once. While something else is being done for the cell, that
// goes first; its outcome is forgotten, and whoever wants it asks again.
func (c *Controller) aside(ctx context.Context, e *entry, what string, do func(context.Context) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := e.aside; a != nil {
		if !a.ended {
			return errUnderWay
		}
		e.aside = nil
		if a.what == what {
			return a.err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &aside{what: what, cancel: cancel}
	e.aside = a
	c.inTurn(ctx, what, func(ctx context.Context) {
		defer cancel()
		err := do(ctx)
		c.mu.Lock()
		a.ended, a.err = true, err
		c.mu.Unlock()
		c.queue.Add(e.id)
	})
	return errUnderWay
}

// isAside says that something is being done for a cell, or has ended and nobody has its
// outcome yet.
func (c *Controller) isAside(e *entry, what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.aside != nil && e.aside.what == what
}

// dropAside ends what is being done for a cell, unless it is what is named: nobody
// waits for it any more.
func (c *Controller) dropAside(e *entry, but string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.aside != nil && e.aside.what != but {
		e.aside.cancel()
		e.aside = nil
	}
}
