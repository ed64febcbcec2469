package kip

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// factsKey is where is stored what has turned out of the cloud's account.
const factsKey = "facts"

// fact holds until a time. Lasts is how long it held when it was noted: a clock that was wrong then keeps no fact longer.
type fact struct {
	Until time.Time     `json:"until"`
	Lasts time.Duration `json:"lasts"`
}

// storedFacts is what has turned out of the cloud's account, kept over restarts. Its methods are for concurrent use.
type storedFacts struct {
	record *kept[map[string]fact]
	clock  clock.PassiveClock

	mu  sync.Mutex
	all map[string]fact
}

var _ cloud.Facts = (*storedFacts)(nil)

// loadFacts returns those that are stored.
func loadFacts(ctx context.Context, st *store.Store, c clock.PassiveClock, log *slog.Logger) (*storedFacts, error) {
	f := &storedFacts{clock: c, all: map[string]fact{}}
	var err error
	if f.record, err = loadKept(ctx, st, factsKey, "what has turned out of the cloud's account", &f.all, log); err != nil {
		return nil, err
	}
	now := c.Now()
	for name, one := range f.all {
		if latest := now.Add(one.Lasts); one.Until.After(latest) {
			one.Until = latest
			f.all[name] = one
		}
	}
	return f, nil
}

// Holds implements cloud.Facts.
func (f *storedFacts) Holds(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clock.Now().Before(f.all[name].Until)
}

// Note implements cloud.Facts.
func (f *storedFacts) Note(name string, lasts time.Duration) {
	f.mu.Lock()
	f.all[name] = fact{Until: f.clock.Now().Add(lasts), Lasts: lasts}
	f.mu.Unlock()
	f.record.change()
}

// list returns the facts that hold.
func (f *storedFacts) list() map[string]fact {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	maps.DeleteFunc(f.all, func(_ string, one fact) bool { return !now.Before(one.Until) })
	return maps.Clone(f.all)
}

// keep stores the facts until ctx ends.
func (f *storedFacts) keep(ctx context.Context) error { return f.record.run(ctx, f.list) }
