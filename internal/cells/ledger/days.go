package ledger

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/internal/costs"
	"github.com/elotl/kip/internal/store"
)

const (
	costsPrefix = "costs/"
	// openKey has the entries that are not among those of a day yet, sumsKey what
	// namespaces have cost since Kip's state began.
	openKey, sumsKey = costsPrefix + "open", costsPrefix + "sums"
	// daysPrefix is before the days: each has the entries of cells that ended then, of
	// that day and of those before.
	daysPrefix = costsPrefix + "days/"
	// mostOpen is how many entries are kept apart: the record of a day is written once
	// for as many cells.
	mostOpen = 32
	// mostDayBytes is how much the entries of a day have at most, as JSON.
	mostDayBytes = 192 << 10
	// mostNamespaces is how many have a sum of their own. It is theirs for good, so that
	// none decreases.
	mostNamespaces = 500
	// mostExpired is how many days go at a time, mostPassed how many are passed.
	mostExpired, mostPassed = 4, 100
	// mostUnreadable is how many days in a row may have a record that cannot be read.
	mostUnreadable = 3
)

// costSums is the record at sumsKey.
type costSums struct {
	Namespaces map[string]costs.Amount `json:"namespaces"`
	// First and Last are the days that may have a record; 0 before the first.
	First costs.Day `json:"first"`
	Last  costs.Day `json:"last"`
}

// costDays is what cells that are gone have cost, by day and by whom. It is the ledger's alone, whose mutex
// guards all of it, and whose transactions change it.
type costDays struct {
	store        *store.Store
	openRevision int64
	open         []costs.Entry
	sumsRevision int64
	sums         costSums
	// own are the namespaces that have a sum of their own.
	own map[string]bool
}

// read reads what is stored, but for the days.
func (d *costDays) read(ctx context.Context) (err error) {
	is := costDays{store: d.store, own: d.own}
	if is.openRevision, err = d.store.Get(ctx, openKey, &is.open); err != nil {
		return err
	}
	if is.sumsRevision, err = d.store.Get(ctx, sumsKey, &is.sums); err != nil {
		return err
	}
	if is.own == nil {
		is.own = map[string]bool{}
	}
	for namespace := range is.sums.Namespaces {
		is.own[namespace] = true
	}
	*d = is
	return nil
}

// claimSum returns the sum that a namespace counts in. A namespace gets one of its own, as long as there are any.
func (d *costDays) claimSum(namespace string) string {
	switch {
	case d.own[namespace] || namespace == costs.NoPod:
	case len(d.own) >= mostNamespaces:
		return costs.Others
	default:
		d.own[namespace] = true
	}
	return namespace
}

// byNamespace returns the sums with some entries more.
func (d *costDays) byNamespace(more []costs.Entry) map[string]costs.Amount {
	sums := maps.Clone(d.sums.Namespaces)
	if sums == nil {
		sums = map[string]costs.Amount{}
	}
	for _, e := range more {
		namespace := d.claimSum(e.Namespace)
		sums[namespace] = sums[namespace].Plus(e.Total())
	}
	return sums
}

// with returns what it is with some entries more, and the changes that store it: its
// revisions are then that of their transaction.
func (d *costDays) with(ctx context.Context, more []costs.Entry, now time.Time) (next costDays, changes []store.Change, err error) {
	next = *d
	if next.open = slices.Concat(d.open, more); len(next.open) <= mostOpen {
		return next, []store.Change{{Key: openKey, Value: next.open, Revision: d.openRevision}}, nil
	}
	// A day that is not the last has its last entries: who reads it needs no lock.
	day := max(costs.DayOf(now), d.sums.Last)
	var entries []costs.Entry
	revision, err := d.store.Get(ctx, daysPrefix+day.String(), &entries)
	for try := 0; errors.Is(err, store.ErrUnreadable) && try < mostUnreadable; try++ {
		// The end of a cell does not wait for a person to mend it, and it stays as it is.
		day, entries = day+1, nil
		revision, err = d.store.Get(ctx, daysPrefix+day.String(), &entries)
	}
	if err != nil {
		return next, nil, err
	}
	key := daysPrefix + day.String()
	kept := costs.DayOf(now) - costs.Kept
	if entries, err = costs.Compact(slices.Concat(entries, next.open), kept, mostDayBytes); err != nil {
		return next, nil, err
	}
	next.sums = costSums{Namespaces: d.byNamespace(next.open), First: cmp.Or(d.sums.First, day), Last: day}
	next.open = []costs.Entry{}
	passed := 0
	for ; next.sums.First < kept && len(changes) < mostExpired && passed < mostPassed; next.sums.First++ {
		passed++
		old := daysPrefix + next.sums.First.String()
		is, err := d.store.Get(ctx, old, new([]costs.Entry))
		if err != nil && !errors.Is(err, store.ErrUnreadable) {
			return next, nil, err
		}
		if is != 0 {
			changes = append(changes, store.Change{Key: old, Revision: is})
		}
	}
	return next, append(changes,
		store.Change{Key: key, Value: entries, Revision: revision},
		store.Change{Key: openKey, Value: next.open, Revision: d.openRevision},
		store.Change{Key: sumsKey, Value: next.sums, Revision: d.sumsRevision}), nil
}

// written takes over what is stored now.
func (d *costDays) written(next costDays, changes []store.Change, revision int64) {
	for _, change := range changes {
		switch change.Key {
		case openKey:
			next.openRevision = revision
		case sumsKey:
			next.sumsRevision = revision
		}
	}
	*d = next
}

// Snapshot returns the entries that may still change, with those of the cells that are
// there, and between which days the others are: from the first to before the last. No cell
// ends meanwhile.
func (l *Ledger) Snapshot(ctx context.Context, there func() []costs.Entry) (first, last costs.Day, entries []costs.Entry, err error) {
	err = l.reading(ctx, func() error {
		if first, last = l.days.sums.First, l.days.sums.Last; last != 0 {
			if _, err := l.store.Get(ctx, daysPrefix+last.String(), &entries); err != nil {
				return err
			}
		}
		entries = slices.Concat(entries, l.days.open, there())
		return nil
	})
	return first, last, entries, err
}

// Day returns the entries of cells that ended on a day that is not the last one. Who reads them needs no lock.
func (l *Ledger) Day(ctx context.Context, day costs.Day) (entries []costs.Entry, err error) {
	_, err = l.store.Get(ctx, daysPrefix+day.String(), &entries)
	return entries, err
}
