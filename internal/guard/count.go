package guard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/watchdog"
)

const (
	// endsKey is the record of the ends that count, with which the next process, or the next leader, continues.
	endsKey = "ends"
	// mergeFor is how long ends go into the same stored record.
	mergeFor = 30 * time.Second
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
	// namespace is that of the pod, if this process has let its cell end.
	namespace *string
}

// window has the ends that count for the limit, oldest first.
type window []passed

// ends returns how many there are.
func (w window) ends() (n int) {
	for _, p := range w {
		n += p.Ends
	}
	return n
}

// byNamespace returns how many there are of each namespace, by this process.
func (w window) byNamespace() map[string]int {
	had := map[string]int{}
	for _, p := range w {
		if p.namespace != nil {
			had[*p.namespace] += p.Ends
		}
	}
	return had
}

// together merges ends into few records, each with the last of their times.
func (w window) together() (few window) {
	var began time.Time
	for _, p := range w {
		if last := len(few) - 1; last >= 0 && p.At.Sub(began) < mergeFor {
			few[last].At = p.At
			few[last].Ends += p.Ends
			continue
		}
		few, began = append(few, p), p.At
	}
	return few
}

// lock locks counting. Whoever has it may wait for the store.
func (g *Guard) lock(ctx context.Context) {
	defer watchdog.Wait(ctx, watchdog.Store)()
	g.counting.Lock()
}

// count stores that an end counts for the Limit, unless it counts already, or returns why the Limit holds it back.
func (g *Guard) count(ctx context.Context, e End, population int) *HeldError {
	g.lock(ctx)
	defer g.counting.Unlock()
	if g.isCounted(e.Instance) { // for another request at the same time
		return nil
	}
	population = g.knownPopulation(population)
	if err := g.readWindow(ctx); err != nil {
		return unstored(err)
	}
	now := g.cfg.Clock.Now()
	g.window = slices.DeleteFunc(g.window, func(p passed) bool { return now.Sub(p.At) >= g.cfg.Limit.Window })
	if held := g.cfg.Limit.holds(g.window, e.Pod.Namespace, g.waitingNamespaces(now), population, now); held != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.waiting[e.Instance] = waiting{namespace: e.Pod.Namespace, asked: now}
		return held
	}
	window := append(g.window, passed{At: now, Population: population, Ends: 1, namespace: new(e.Pod.Namespace)})
	if g.cfg.Store != nil {
		revision, err := g.cfg.Store.Put(ctx, endsKey, window.together(), g.revision)
		if err != nil {
			g.read = false // the write may have come through: the stored window has at least what has ended
			return unstored(err)
		}
		g.revision = revision
	}
	g.window = window
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counted[e.Instance] = true
	delete(g.waiting, e.Instance)
	return nil
}

func unstored(err error) *HeldError {
	return &HeldError{Reason: ByLimit, Text: fmt.Sprintf("store that it counts for the limit of ends: %v", err), After: storeRetry}
}

func (g *Guard) isCounted(instance string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counted[instance] || g.admitted[instance]
}

// knownPopulation returns the population, or the last that was known where a caller knows none.
func (g *Guard) knownPopulation(population int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.population = cmp.Or(population, g.population)
	return g.population
}

// waitingNamespaces returns the namespaces whose ends the limit holds back, and forgets those that nobody requests any more.
func (g *Guard) waitingNamespaces(now time.Time) map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]bool{}
	for instance, w := range g.waiting {
		if now.Sub(w.asked) > heldFor {
			delete(g.waiting, instance)
			continue
		}
		all[w.namespace] = true
	}
	return all
}

// readWindow reads the stored window once. It is called under counting.
func (g *Guard) readWindow(ctx context.Context) error {
	if g.cfg.Store == nil || g.read {
		return nil
	}
	var stored window
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
	g.read, g.revision, g.window = true, revision, stored
	return nil
}
