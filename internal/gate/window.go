package gate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// endsKey is the record of what counts: a Kip that begins anew, or leads from now on,
// counts on from there.
const endsKey = "ends"

const (
	// reserveParts is in how many steps all of a limit is stored, each before its ends:
	// a process that dies loses at most one of them.
	reserveParts = 8
	// reservedFor is how long a step may be spent. It is stored with the time at which it
	// began.
	reservedFor = 30 * time.Second
	// storeRetry is when it is worth asking again after the store has failed.
	storeRetry = 5 * time.Second
)

// Store keeps one record. Put writes it if it has the revision, 0 for a new one, and
// returns the new revision, which Get returns also.
type Store interface {
	Get(ctx context.Context, key string, v any) (revision int64, err error)
	Put(ctx context.Context, key string, v any, revision int64) (int64, error)
}

// passed are ends that counted.
type passed struct {
	At time.Time `json:"at"`
	// Population is how many there were then.
	Population int `json:"population"`
	Ends       int `json:"ends"`
	// namespace is that of the pod that ended, if this process has ended it.
	namespace *string
}

// isTurn says that no namespace waits that has had fewer ends within the time: who has
// pods that end all the time does not keep others from ever getting another cell. It is
// called under mu.
func (g *Gate) isTurn(namespace string, now time.Time) bool {
	maps.DeleteFunc(g.waiting, func(_ string, asked time.Time) bool { return now.Sub(asked) > heldFor })
	if _, mine := g.waiting[namespace]; len(g.waiting) == 0 || mine && len(g.waiting) == 1 {
		return true
	}
	had := map[string]int{}
	for _, p := range g.window {
		if p.namespace != nil {
			had[*p.namespace] += p.Ends
		}
	}
	for other := range g.waiting {
		if had[other] < had[namespace] {
			return false
		}
	}
	return true
}

// count is how many ends count now, and how many may. It is called under mu.
func (g *Gate) count(now time.Time, population int) (ended, most, began int) {
	g.window = slices.DeleteFunc(g.window, func(p passed) bool { return now.Sub(p.At) >= g.cfg.Limit.Window })
	began = population
	if len(g.window) > 0 {
		began = g.window[0].Population
	}
	for _, p := range g.window {
		ended += p.Ends
	}
	return ended, max(g.cfg.Limit.Least, began*g.cfg.Limit.Percent/100), began
}

// bound counts an end that may be a mistake, or holds it back, unless what it counts
// for is not stored yet. It is called under mu.
func (g *Gate) bound(e End, now time.Time, population int) (because *HeldError, unstored bool) {
	if !e.Mistakable {
		return nil, false
	}
	ended, most, began := g.count(now, population)
	if ended >= most {
		after := g.cfg.Limit.Window
		if len(g.window) > 0 {
			after = g.window[0].At.Add(g.cfg.Limit.Window).Sub(now)
		}
		return &HeldError{
			Reason: ByLimit,
			Text: fmt.Sprintf("%d of %d have ended within %s, which is as many as may end for a mistake",
				ended, began, g.cfg.Limit.Window),
			After: after,
		}, false
	}
	if !g.isTurn(e.Pod.Namespace, now) {
		return &HeldError{
			Reason: ByLimit,
			Text: fmt.Sprintf("as many as may end for a mistake had ended within %s, and it is the turn of other namespaces than %s",
				g.cfg.Limit.Window, cmp.Or(e.Pod.Namespace, "none")),
			After: storeRetry,
		}, false
	}
	if g.cfg.Store != nil {
		if g.reserved == 0 || !now.Before(g.reservedUntil) {
			return nil, true
		}
		g.reserved--
	}
	g.window = append(g.window, passed{
		At:         now,
		Population: population,
		Ends:       1,
		namespace:  new(e.Pod.Namespace),
	})
	return nil, false
}

// reserve stores that some more have ended, or reads what is stored. After an error it
// is not known what is: what is read then is no less than what has ended.
func (g *Gate) reserve(ctx context.Context, population int) error {
	g.storing.Lock()
	defer g.storing.Unlock()
	if !g.read {
		return g.readWindow(ctx)
	}
	g.mu.Lock()
	now := g.cfg.Clock.Now()
	if g.reserved > 0 && now.Before(g.reservedUntil) { // another has stored it meanwhile
		g.mu.Unlock()
		return nil
	}
	ended, most, _ := g.count(now, population)
	n := max(1, min(most/reserveParts, most-ended))
	stored := append(together(g.window), passed{At: now, Population: population, Ends: n})
	g.mu.Unlock()
	revision, err := g.cfg.Store.Put(ctx, endsKey, stored, g.revision)
	if err != nil {
		g.read = false
		return err
	}
	g.revision = revision
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reserved, g.reservedUntil = n, g.cfg.Clock.Now().Add(reservedFor)
	return nil
}

// readWindow reads what is stored. The caller holds storing.
func (g *Gate) readWindow(ctx context.Context) error {
	var stored []passed
	revision, err := g.cfg.Store.Get(ctx, endsKey, &stored)
	if err != nil {
		return err
	}
	now := g.cfg.Clock.Now()
	for n, p := range stored {
		if p.At.After(now) { // by the clock of another machine
			stored[n].At = now
		}
	}
	g.read, g.revision = true, revision
	g.mu.Lock()
	defer g.mu.Unlock()
	g.window, g.reserved = stored, 0
	return nil
}

// together are the same ends in few records, each with the last of their times.
func together(all []passed) (few []passed) {
	var began time.Time
	for _, p := range all {
		if last := len(few) - 1; last >= 0 && p.At.Sub(began) < reservedFor {
			few[last].At = p.At
			few[last].Ends += p.Ends
			continue
		}
		few, began = append(few, p), p.At
	}
	return few
}
