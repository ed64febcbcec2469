package cells

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pulse"
	"github.com/elotl/kip/internal/store"
)

// errMoved: an earlier write, whose answer was lost, did reach the store. The
// record is now as that write left it. The step is to be run again.
var errMoved = errors.New("the stored record has moved on")

// errGone: a cell that is Gone has no record, and no change.
var errGone = errors.New("the cell is gone")

// save changes the record of one cell: first in the store, then here.
func (c *Controller) save(ctx context.Context, e *entry, change func(*Cell) error) error {
	return c.commit(ctx, []*entry{e}, func(_ int, cell *Cell) error { return change(cell) })
}

// commit changes the records of some cells, all or none: first in the store, then
// here. It is the only way in which a record changes. A cell that becomes Gone
// loses its record, and its cost enters the ledger, in the same transaction.
func (c *Controller) commit(ctx context.Context, entries []*entry, change func(n int, cell *Cell) error) error {
	_, err := c.commitWith(ctx, entries, change)
	return err
}

// commitWith is commit with changes of other records in the same transaction,
// whose revision it returns.
func (c *Controller) commitWith(
	ctx context.Context, entries []*entry, change func(n int, cell *Cell) error, more ...store.Change,
) (int64, error) {
	for _, e := range slices.SortedFunc(slices.Values(entries), func(a, b *entry) int { return cmp.Compare(a.id, b.id) }) {
		lockWriting(ctx, e)
		defer e.writing.Unlock()
	}
	var moved error
	for _, e := range entries { // all of them: what was written of one was written of all
		if err := c.settle(ctx, e); errors.Is(err, errMoved) {
			moved = err
		} else if err != nil {
			return 0, err
		}
	}
	if moved != nil {
		return 0, moved
	}
	for _, e := range entries {
		if e.cell().Phase == apiv1.Gone {
			return 0, fmt.Errorf("change cell %s: %w", e.id, errGone)
		}
	}
	now := c.cfg.Clock.Now()
	after := make([]*Cell, len(entries))
	changes := make([]store.Change, len(entries), len(entries)+1+len(more))
	spent := map[string]float64{}
	out := outgoings{at: now, spent: spending{monthOf(now), spent}}
	for n, e := range entries {
		cell := e.cell().clone()
		if err := change(n, &cell); err != nil {
			return 0, err
		}
		after[n] = &cell
		out.entries = append(out.entries, ended(e.cell(), &cell, now, c.use(&cell))...)
		changes[n] = store.Change{Key: keyPrefix + e.id, Revision: e.revision}
		if cell.Phase == apiv1.Gone {
			out.costs = append(out.costs, cell.cost(now))
			if namespace := cell.Pod.Namespace; c.budgetOf(namespace).PerMonth > 0 {
				spent[namespace] += cell.spentSince(monthOf(now), now)
			}
		} else {
			changes[n].Value = cell
		}
	}
	var revision int64
	err := c.ledger.enter(ctx, out, func(entered ...store.Change) (int64, error) {
		at, err := c.cfg.Store.Apply(ctx, slices.Concat(changes, more, entered)...)
		if err != nil {
			if !notWritten(err) {
				for n, e := range entries {
					e.unsure = after[n]
				}
			}
			return 0, err
		}
		for n, e := range entries {
			c.adopt(e, after[n], at)
		}
		revision = at
		return at, nil
	})
	return revision, err
}

// lockWriting waits for whoever writes the record of a cell now.
func lockWriting(ctx context.Context, e *entry) {
	defer pulse.Wait(ctx, pulse.Store)()
	e.writing.Lock()
}

// refusedWrite says that somebody else writes our records.
func refusedWrite(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotLeader)
}

// notWritten says that the store has surely not written.
func notWritten(err error) bool {
	return refusedWrite(err) || errors.Is(err, store.ErrNoSpace) || errors.Is(err, store.ErrTooBig)
}

// adopt makes a stored record the current one. The caller holds e.writing.
func (c *Controller) adopt(e *entry, cell *Cell, revision int64) {
	e.unsure, e.revision = nil, revision
	gone := cell.Phase == apiv1.Gone
	c.mu.Lock()
	e.reserved, e.paidFrom = cell.Offer().CostPerHour(), cell.paidFrom()
	c.index(e, cell.Instance)
	c.mu.Unlock()
	if gone && cell.Pod.UID == "" {
		cell.Pod = e.pod // it was promised to it
	}
	e.current.Store(cell)
	if gone {
		c.bury(e)
	}
	c.observers.CellChanged(*cell)
	if cell.Standby != "" {
		c.refillSoon()
	}
}

// index has an instance found as that of a cell, instead of the one that it has by now. The caller holds mu.
func (c *Controller) index(e *entry, next *cloud.Instance) {
	if was := e.cell().Instance; was != nil && c.byInstance[was.ID] == e {
		delete(c.byInstance, was.ID)
	}
	if next != nil {
		c.byInstance[next.ID] = e
	}
}

// havingInstance is the cell that has an instance; nil where none has.
func (c *Controller) havingInstance(id string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byInstance[id]
}

// bury forgets a cell that has no record any more.
func (c *Controller) bury(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.cells, e.id)
	c.entries.Delete(e.id)
	c.index(e, nil)
	c.unreserve(e)
	c.pools.gone(*e.cell())
	if i := e.cell().Instance; i != nil {
		delete(c.terminating, i.ID)
		c.cfg.Gate.Forget(i.ID)
	}
}

// settle finds out what became of a write whose answer was lost; errMoved if it
// was done. The caller holds e.writing.
func (c *Controller) settle(ctx context.Context, e *entry) error {
	if e.unsure == nil {
		return nil
	}
	var stored json.RawMessage
	revision, err := c.cfg.Store.Get(ctx, keyPrefix+e.id, &stored)
	if err != nil {
		return err
	}
	written, err := json.Marshal(e.unsure)
	if err != nil {
		return err
	}
	switch {
	case revision == 0 && e.revision == 0: // a new record that was not written
		gone := e.cell().clone()
		gone.Phase, gone.Reason = apiv1.Gone, "it could not be stored"
		c.adopt(e, &gone, 0)
		return errMoved
	case revision == e.revision:
		e.unsure = nil
		return nil
	case revision == 0 && e.unsure.Phase == apiv1.Gone, revision != 0 && bytes.Equal(stored, written):
		if err := c.ledger.load(ctx); err != nil { // its cost went into it
			return err
		}
		c.adopt(e, e.unsure, revision)
		return errMoved
	}
	return fmt.Errorf("read back cell %s: %w", e.id, store.ErrConflict)
}
