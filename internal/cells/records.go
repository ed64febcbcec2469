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
	"github.com/elotl/kip/internal/cells/ledger"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

// errMoved: an earlier write, whose answer was lost, did reach the store. The
// record is now as that write left it. The step is to be run again.
var errMoved = errors.New("the stored record has moved on")

// errGone: a cell that is Gone has no record, and no change.
var errGone = errors.New("the cell is gone")

// records are those of cells in the store. All changes of them go through commit.
type records struct {
	clock     clock.PassiveClock
	store     *store.Store
	ledger    *ledger.Ledger
	bills     bills
	adoptions *adoptions
	observers *observers
}

// save changes the record of one cell: first in the store, then here.
func (r *records) save(ctx context.Context, e *entry, change func(*Cell) error) error {
	return r.commit(ctx, []*entry{e}, func(_ int, cell *Cell) error { return change(cell) })
}

// commit changes the records of some cells, all or none: first in the store, then
// here. It is the only way in which the record of a cell changes that is there; add.go makes records. A cell that becomes Gone
// loses its record, and its cost enters the ledger, in the same transaction.
func (r *records) commit(ctx context.Context, entries []*entry, change func(n int, cell *Cell) error) error {
	_, err := r.commitWith(ctx, entries, change)
	return err
}

// commitWith is commit with changes of other records in the same transaction,
// whose revision it returns.
func (r *records) commitWith(
	ctx context.Context, entries []*entry, change func(n int, cell *Cell) error, more ...store.Change,
) (int64, error) {
	for _, e := range slices.SortedFunc(slices.Values(entries), func(a, b *entry) int { return cmp.Compare(a.id, b.id) }) {
		lockWriting(ctx, e)
		defer e.writing.Unlock()
	}
	var moved error
	for _, e := range entries { // all of them: what was written of one was written of all
		if err := r.settleLocked(ctx, e); errors.Is(err, errMoved) {
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
	now := r.clock.Now()
	after := make([]*Cell, len(entries))
	changes := make([]store.Change, len(entries), len(entries)+1+len(more))
	out := r.bills.open(now)
	for n, e := range entries {
		cell := e.cell().clone()
		if err := change(n, &cell); err != nil {
			return 0, err
		}
		after[n] = &cell
		r.bills.add(&out, e.cell(), &cell)
		changes[n] = store.Change{Key: keyPrefix + e.id, Revision: e.revision}
		if cell.Phase != apiv1.Gone {
			changes[n].Value = cell
		}
	}
	return r.ledger.Enter(ctx, out, func(sums []store.Change) (int64, error) {
		revision, err := r.store.Apply(ctx, slices.Concat(changes, more, sums)...)
		for n, e := range entries {
			switch {
			case err == nil:
				r.adoptLocked(e, after[n], revision)
			case !store.NotWritten(err):
				e.unsure = after[n]
			}
		}
		return revision, err
	})
}

// lockWriting waits for whoever writes the record of a cell now.
func lockWriting(ctx context.Context, e *entry) {
	defer watchdog.Wait(ctx, watchdog.Store)()
	e.writing.Lock()
}

// adoptLocked makes a stored record the current one, and tells observers of it. The caller holds e.writing.
func (r *records) adoptLocked(e *entry, cell *Cell, revision int64) {
	e.unsure, e.revision = nil, revision
	r.adoptions.adoptLocked(e, cell)
	r.observers.CellChanged(*cell)
}

// settleLocked finds out what became of a write whose answer was lost; errMoved if it
// was done. The caller holds e.writing.
func (r *records) settleLocked(ctx context.Context, e *entry) error {
	if e.unsure == nil {
		return nil
	}
	var stored json.RawMessage
	revision, err := r.store.Get(ctx, keyPrefix+e.id, &stored)
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
		r.adoptLocked(e, &gone, 0)
		return errMoved
	case revision == e.revision:
		e.unsure = nil
		return nil
	case revision == 0 && e.unsure.Phase == apiv1.Gone, revision != 0 && bytes.Equal(stored, written):
		if err := r.ledger.Load(ctx); err != nil { // its cost went into it
			return err
		}
		r.adoptLocked(e, e.unsure, revision)
		return errMoved
	}
	return fmt.Errorf("read back cell %s: %w", e.id, store.ErrConflict)
}

// checkOutcomeUnknown returns nil if a launch whose call is not stored has no stored outcome either: a
// call goes with the write of its outcomes. If this Kip wrote them, the error is errMoved;
// store.ErrConflict if a later one did.
func (r *records) checkOutcomeUnknown(ctx context.Context, e *entry, launch string) error {
	lockWriting(ctx, e)
	defer e.writing.Unlock()
	if err := r.settleLocked(ctx, e); err != nil {
		return err
	}
	waits := func(cell *Cell) bool {
		return cell.Phase == apiv1.Launching && cell.Launch != nil && cell.Launch.ID == launch
	}
	if !waits(e.cell()) {
		return errMoved
	}
	var stored Cell
	if _, err := r.store.Get(ctx, keyPrefix+e.id, &stored); err != nil {
		return err
	}
	if !waits(&stored) {
		return fmt.Errorf("read back cell %s: %w", e.id, store.ErrConflict)
	}
	return nil
}

// notify tells observers of a cell whose record is the same. The changes of a cell are told in their order.
func (r *records) notify(ctx context.Context, e *entry) {
	lockWriting(ctx, e)
	defer e.writing.Unlock()
	r.observers.CellChanged(*e.cell())
}

// showAgain tells observers of a cell whose record is the same, and of which something
// else is to be shown. If its record is being changed they are told anyway.
func (r *records) showAgain(e *entry) {
	if e.writing.TryLock() {
		defer e.writing.Unlock()
		r.observers.CellChanged(*e.cell())
	}
}
