package ledger

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/elotl/kip/internal/costs"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
)

// Cost is what cells of one kind have cost since Kip's state began.
type Cost struct {
	InstanceType string  `json:"instanceType"`
	Spot         bool    `json:"spot,omitempty"`
	Dedicated    bool    `json:"dedicated,omitempty"`
	Seconds      float64 `json:"seconds"`
	Dollars      float64 `json:"dollars"`
}

// key is that of the sum among the stored ones. Of cells that are neither it is what it was
// before the sums of dedicated cells were apart.
func (k Cost) key() string {
	key := fmt.Sprintf("%s %t", k.InstanceType, k.Spot)
	if k.Dedicated {
		key += " dedicated"
	}
	return key
}

// CapacityType returns how the cells were bought.
func (k Cost) CapacityType() offering.CapacityType {
	return offering.CapacityTypeOf(k.Spot, k.Dedicated)
}

const (
	ledgerKey = "ledger"
	// spentKey has what namespaces with a budget of a month have spent in it.
	spentKey = "spent"
	// mostKept is how many namespaces it has at most, so that it stays far below what
	// a record may be: of more, those that have spent least are forgotten.
	mostKept = 5000
)

// Spending is what cells that are gone have cost in a month, in dollars by namespace.
type Spending struct {
	Month   time.Time          `json:"month"`
	Dollars map[string]float64 `json:"dollars"`
}

// with returns the sum of two spendings: that of the later month, where these differ.
func (s Spending) with(more Spending) Spending {
	switch {
	case more.Month.After(s.Month):
		return more
	case s.Month.After(more.Month):
		return s
	}
	s.Dollars = maps.Clone(s.Dollars)
	for namespace, dollars := range more.Dollars {
		if s.Dollars == nil {
			s.Dollars = map[string]float64{}
		}
		s.Dollars[namespace] += dollars
	}
	if n := len(s.Dollars) - mostKept; n > 0 {
		least := slices.SortedFunc(maps.Keys(s.Dollars), func(a, b string) int {
			return cmp.Or(cmp.Compare(s.Dollars[a], s.Dollars[b]), cmp.Compare(a, b))
		})
		for _, namespace := range least[:n] {
			delete(s.Dollars, namespace)
		}
	}
	return s
}

// Ledger sums what the cells that are gone have cost. The sums change in the
// transaction that removes the record of a cell, so that no cell counts twice or
// not at all, whenever Kip dies.
type Ledger struct {
	store *store.Store

	mu       sync.Mutex
	known    bool // costs and revision are those of the store
	revision int64
	costs    map[string]Cost

	spentRevision int64
	spent         Spending

	days costDays
}

// New returns the ledger of a store. Nothing of it is known until it is loaded.
func New(st *store.Store) *Ledger { return &Ledger{store: st, days: costDays{store: st}} }

// Spent runs do with what the cells of a namespace that are gone have cost in a month, in dollars, and returns its error. No cell ends
// meanwhile.
func (l *Ledger) Spent(ctx context.Context, namespace string, month func() time.Time, do func(dollars float64) error) error {
	return l.reading(ctx, func() error { return do(l.spentByLocked(namespace, month())) })
}

// spentByLocked returns what the cells of a namespace that are gone have cost in a month. The caller
// holds mu, and has read.
func (l *Ledger) spentByLocked(namespace string, month time.Time) float64 {
	if !l.spent.Month.Equal(month) {
		return 0
	}
	return l.spent.Dollars[namespace]
}

// lock waits for whoever writes the sums now.
func (l *Ledger) lock(ctx context.Context) {
	defer watchdog.Wait(ctx, watchdog.Store)()
	l.mu.Lock()
}

// Load reads what is stored, if that is not known.
func (l *Ledger) Load(ctx context.Context) error { return l.reading(ctx, func() error { return nil }) }

// reading runs do with mu held when what is stored is known, and returns its error. No cell ends meanwhile.
func (l *Ledger) reading(ctx context.Context, do func() error) error {
	l.lock(ctx)
	defer l.mu.Unlock()
	if err := l.readLocked(ctx); err != nil {
		return err
	}
	return do()
}

// readLocked reads what is stored, if that is not known. The caller holds mu.
func (l *Ledger) readLocked(ctx context.Context) error {
	if l.known {
		return nil
	}
	costs := map[string]Cost{}
	revision, err := l.store.Get(ctx, ledgerKey, &costs)
	if err != nil {
		return err
	}
	var spent Spending
	spentRevision, err := l.store.Get(ctx, spentKey, &spent)
	if err != nil {
		return err
	}
	if err := l.days.read(ctx); err != nil {
		return err
	}
	l.known, l.revision, l.costs = true, revision, costs
	l.spentRevision, l.spent = spentRevision, spent
	return nil
}

// Outgoings are what a change of some cells adds to the sums.
type Outgoings struct {
	At    time.Time
	Costs []Cost
	// Entries are of cells whose instance is gone or stopped.
	Entries []costs.Entry
	// Spent is what of the costs counts against the budgets of namespaces.
	Spent Spending
}

// entering is what a change of some cells adds to the sums, before it is stored.
type entering struct {
	changes []store.Change // to be stored with the end of the cells' records

	sums      map[string]Cost // nil where they stay
	days      costDays
	dayWrites []store.Change
	spent     *Spending // nil where it stays
}

// Enter adds what some cells have cost to the sums. write stores the changes of the sums together with the end of the cells' records, and
// returns the revision; Enter returns what write does. Nobody reads or writes the sums until write has returned: by then the cells are
// forgotten.
func (l *Ledger) Enter(
	ctx context.Context, of Outgoings, write func(sums []store.Change) (revision int64, err error),
) (revision int64, err error) {
	of.Costs = slices.DeleteFunc(of.Costs, func(k Cost) bool { return k.Seconds == 0 })
	if len(of.Costs) == 0 && len(of.Entries) == 0 {
		return write(nil)
	}
	err = l.reading(ctx, func() error {
		in, err := l.addedLocked(ctx, of)
		if err != nil {
			return err
		}
		revision, err = write(in.changes)
		l.storedLocked(in, revision, err)
		return err
	})
	return revision, err
}

// addedLocked returns the sums with what some cells have cost. The caller holds mu.
func (l *Ledger) addedLocked(ctx context.Context, of Outgoings) (in entering, err error) {
	in.days = l.days
	if len(of.Costs) > 0 {
		in.sums = l.withLocked(of.Costs)
		in.changes = append(in.changes, store.Change{Key: ledgerKey, Value: in.sums, Revision: l.revision})
	}
	if len(of.Entries) > 0 {
		if in.days, in.dayWrites, err = l.days.with(ctx, of.Entries, of.At); err != nil {
			return in, err
		}
		in.changes = append(in.changes, in.dayWrites...)
	}
	if len(of.Spent.Dollars) > 0 {
		in.spent = new(l.spent.with(of.Spent))
		in.changes = append(in.changes, store.Change{Key: spentKey, Value: *in.spent, Revision: l.spentRevision})
	}
	return in, nil
}

// storedLocked notes what became of the transaction. The caller holds mu.
func (l *Ledger) storedLocked(in entering, revision int64, err error) {
	switch {
	case err == nil:
		if in.sums != nil {
			l.costs, l.revision = in.sums, revision
		}
		l.days.written(in.days, in.dayWrites, revision)
		if in.spent != nil {
			l.spent, l.spentRevision = *in.spent, revision
		}
	case !store.NotWritten(err):
		l.known = false
	}
}

// withLocked returns the sums with some more. The caller holds mu.
func (l *Ledger) withLocked(more []Cost) map[string]Cost {
	sums := maps.Clone(l.costs)
	for _, k := range more {
		sum := sums[k.key()]
		sums[k.key()] = Cost{
			InstanceType: k.InstanceType,
			Spot:         k.Spot,
			Dedicated:    k.Dedicated,
			Seconds:      sum.Seconds + k.Seconds,
			Dollars:      sum.Dollars + k.Dollars,
		}
	}
	return sums
}

// Total returns the sums with those of the cells that are there, in the order of
// their types. No cell ends between the two.
func (l *Ledger) Total(there func() []Cost) []Cost {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.withLocked(there())), func(a, b Cost) int { return cmp.Compare(a.key(), b.key()) })
}

// ByNamespace returns what namespaces have cost, with the cells that are there; nil before anything is read. No cell ends between the two.
func (l *Ledger) ByNamespace(there func() []costs.Entry) map[string]costs.Amount {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.days.own == nil {
		return nil
	}
	return l.days.byNamespace(slices.Concat(l.days.open, there()))
}

// MonthOf returns the beginning of the calendar month, in UTC.
func MonthOf(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
}
