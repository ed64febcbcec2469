package cells

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/elotl/kip/internal/pulse"
	"github.com/elotl/kip/internal/store"
)

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
	return Cost{
		InstanceType: offer.InstanceType,
		Spot:         offer.Spot,
		Seconds:      seconds,
		Dollars:      seconds / 3600 * offer.PricePerHour,
	}
}

const ledgerKey = "ledger"

// ledger sums what the cells that are gone have cost. The sums change in the
// transaction that removes the record of a cell, so that no cell counts twice or
// not at all, whenever Kip dies.
type ledger struct {
	store *store.Store

	mu       sync.Mutex
	known    bool // costs and revision are those of the store
	revision int64
	costs    map[string]Cost
}

// lock waits for whoever writes the sums now.
func (l *ledger) lock(ctx context.Context) {
	defer pulse.Wait(ctx, pulse.Store)()
	l.mu.Lock()
}

// load reads what is stored, if that is not known.
func (l *ledger) load(ctx context.Context) error {
	l.lock(ctx)
	defer l.mu.Unlock()
	return l.read(ctx)
}

// read is load under mu.
func (l *ledger) read(ctx context.Context) error {
	if l.known {
		return nil
	}
	costs := map[string]Cost{}
	revision, err := l.store.Get(ctx, ledgerKey, &costs)
	if err != nil {
		return err
	}
	l.known, l.revision, l.costs = true, revision, costs
	return nil
}

// enter adds what some cells have cost: apply is to store the change together with
// the end of their records, and to forget the cells. Nobody reads the sums until
// it has. Without costs it is not given a change.
func (l *ledger) enter(ctx context.Context, costs []Cost, apply func(...store.Change) (revision int64, err error)) error {
	if costs = slices.DeleteFunc(costs, func(k Cost) bool { return k.Seconds == 0 }); len(costs) == 0 {
		_, err := apply()
		return err
	}
	l.lock(ctx)
	defer l.mu.Unlock()
	if err := l.read(ctx); err != nil {
		return err
	}
	sums := l.with(costs)
	revision, err := apply(store.Change{Key: ledgerKey, Value: sums, Revision: l.revision})
	switch {
	case err == nil:
		l.costs, l.revision = sums, revision
	case !notWritten(err):
		l.known = false
	}
	return err
}

// with returns the sums with some more. The caller holds mu.
func (l *ledger) with(more []Cost) map[string]Cost {
	sums := maps.Clone(l.costs)
	for _, k := range more {
		sum := sums[k.key()]
		sums[k.key()] = Cost{
			InstanceType: k.InstanceType,
			Spot:         k.Spot,
			Seconds:      sum.Seconds + k.Seconds,
			Dollars:      sum.Dollars + k.Dollars,
		}
	}
	return sums
}

// total returns the sums with those of the cells that are there, in the order of
// their types. No cell ends between the two.
func (l *ledger) total(there func() []Cost) []Cost {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.with(there())), func(a, b Cost) int { return cmp.Compare(a.key(), b.key()) })
}

// Costs returns what all cells have cost until now, those that are gone
// included, also over restarts. The order is by type.
func (c *Controller) Costs() []Cost {
	now := c.cfg.Clock.Now()
	return c.ledger.total(func() []Cost {
		var running []Cost
		for _, cell := range c.List() {
			running = append(running, cell.cost(now))
		}
		return running
	})
}
