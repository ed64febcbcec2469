package cells

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/store"
)

// errMoved: an earlier write, whose answer was lost, did reach the store. The
// record is now as that write left it, and the step is to be run again.
var errMoved = errors.New("the stored record has moved on")

// save changes the record of one cell: first in the store, then here.
func (c *Controller) save(ctx context.Context, e *entry, change func(*Cell) error) error {
	return c.commit(ctx, []*entry{e}, func(_ int, cell *Cell) error { return change(cell) })
}

// commit changes the records of some cells, all or none: first in the store, then
// here. It is the only way in which a record changes. A cell that becomes Gone
// loses its record, and its cost enters the ledger, in the same transaction.
func (c *Controller) commit(ctx context.Context, entries []*entry, change func(n int, cell *Cell) error) error {
	for _, e := range slices.SortedFunc(slices.Values(entries), func(a, b *entry) int { return cmp.Compare(a.id, b.id) }) {
		e.writing.Lock()
		defer e.writing.Unlock()
	}
	var moved error
	for _, e := range entries { // all of them: what was written of one was written of all
		if err := c.settle(ctx, e); errors.Is(err, errMoved) {
			moved = err
		} else if err != nil {
			return err
		}
	}
	if moved != nil {
		return moved
	}
	now := c.cfg.Clock.Now()
	after := make([]*Cell, len(entries))
	changes := make([]store.Change, len(entries), len(entries)+1)
	var costs []Cost
	for n, e := range entries {
		cell := e.cell().clone()
		if err := change(n, &cell); err != nil {
			return err
		}
		after[n] = &cell
		changes[n] = store.Change{Key: keyPrefix + e.id, Revision: e.revision}
		if cell.Phase == apiv1.Gone {
			costs = append(costs, cell.cost(now))
		} else {
			changes[n].Value = cell
		}
	}
	var entered map[string]Cost
	if costs = slices.DeleteFunc(costs, func(k Cost) bool { return k.Seconds == 0 }); len(costs) > 0 {
		c.ledger.Lock()
		defer c.ledger.Unlock()
		if err := c.ledger.load(ctx, c.cfg.Store); err != nil {
			return err
		}
		entered = c.ledger.with(costs)
		changes = append(changes, store.Change{Key: ledgerKey, Value: entered, Revision: c.ledger.revision})
	}
	revision, err := c.cfg.Store.Apply(ctx, changes...)
	if err != nil {
		if !notWritten(err) {
			for n, e := range entries {
				e.unsure = after[n]
			}
			if entered != nil {
				c.ledger.known = false
			}
		}
		return err
	}
	if entered != nil {
		c.ledger.costs, c.ledger.revision = entered, revision
	}
	for n, e := range entries {
		c.adopt(e, after[n], revision)
	}
	return nil
}

// refusedWrite says that somebody else writes our records.
func refusedWrite(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotLeader)
}

// notWritten says that the store has surely not written.
func notWritten(err error) bool { return refusedWrite(err) || errors.Is(err, store.ErrNoSpace) }

// adopt makes a stored record the current one. The caller holds e.writing.
func (c *Controller) adopt(e *entry, cell *Cell, revision int64) {
	e.unsure, e.revision = nil, revision
	if cell.Phase == apiv1.Gone {
		if cell.Pod.UID == "" {
			cell.Pod = e.pod // it was promised to it
		}
		e.current.Store(cell)
		c.bury(e)
	}
	e.current.Store(cell)
	c.cfg.Changed(*cell)
	if cell.Standby != "" {
		c.refillSoon()
	}
}

// bury forgets a cell that has no record any more.
func (c *Controller) bury(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.cells, e.id)
	c.unreserve(e)
	c.countStandby(*e.cell())
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
		if err := c.loadLedger(ctx); err != nil { // its cost went into it
			return err
		}
		c.adopt(e, e.unsure, revision)
		return errMoved
	}
	return fmt.Errorf("read back cell %s: %w", e.id, store.ErrConflict)
}

// Cost is what cells of one kind have cost since Kip's state began.
type Cost struct {
	InstanceType string  `json:"instanceType"`
	Spot         bool    `json:"spot,omitempty"`
	Seconds      float64 `json:"seconds"`
	Dollars      float64 `json:"dollars"`
}

func (k Cost) key() string { return fmt.Sprintf("%s %t", k.InstanceType, k.Spot) }

// cost is what the cell has cost until now, by the price at which it was chosen.
func (c Cell) cost(now time.Time) Cost {
	offer, seconds := c.Offer(), c.BilledSeconds
	if from := c.launched(); !from.IsZero() && !c.Stopped {
		seconds += max(0, now.Sub(from).Seconds())
	}
	return Cost{InstanceType: offer.InstanceType, Spot: offer.Spot, Seconds: seconds, Dollars: seconds / 3600 * offer.PricePerHour}
}

const ledgerKey = "ledger"

// ledger sums the cost of the cells that are gone.
type ledger struct {
	sync.Mutex
	known    bool // costs and revision are those of the store
	revision int64
	costs    map[string]Cost
}

func (l *ledger) load(ctx context.Context, st *store.Store) error {
	if l.known {
		return nil
	}
	costs := map[string]Cost{}
	revision, err := st.Get(ctx, ledgerKey, &costs)
	if err != nil {
		return err
	}
	l.known, l.revision, l.costs = true, revision, costs
	return nil
}

func (c *Controller) loadLedger(ctx context.Context) error {
	c.ledger.Lock()
	defer c.ledger.Unlock()
	return c.ledger.load(ctx, c.cfg.Store)
}

// with returns the sums with some more.
func (l *ledger) with(more []Cost) map[string]Cost {
	sums := maps.Clone(l.costs)
	for _, k := range more {
		sum := sums[k.key()]
		sums[k.key()] = Cost{InstanceType: k.InstanceType, Spot: k.Spot, Seconds: sum.Seconds + k.Seconds, Dollars: sum.Dollars + k.Dollars}
	}
	return sums
}

// Costs returns what all cells have cost until now, those that are gone
// included, also over restarts. The order is by type.
func (c *Controller) Costs() []Cost {
	now := c.cfg.Clock.Now()
	c.ledger.Lock() // until the cells are read: none is counted twice, or not at all
	defer c.ledger.Unlock()
	var running []Cost
	for _, cell := range c.List() {
		running = append(running, cell.cost(now))
	}
	return slices.SortedFunc(maps.Values(c.ledger.with(running)), func(a, b Cost) int { return cmp.Compare(a.key(), b.key()) })
}
