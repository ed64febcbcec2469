package guard

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Limit bounds the unrequested ends within a window of time.
type Limit struct {
	// Percent of the population when the window began: the cells that run a pod and the instances without a cell.
	Percent int
	// Least is how many may end, however small the population is.
	Least int
	// Window is how long an end counts.
	Window time.Duration
}

// DefaultLimit applies where provider.yaml has no limit.
var DefaultLimit = Limit{Percent: 10, Least: 10, Window: 5 * time.Minute}

// Config of a Guard. All fields are required unless they say otherwise.
type Config struct {
	// Behind returns why the store may not know all instances; "" if it does. Optional: it does.
	Behind func() string
	// Limit is DefaultLimit where it is zero.
	Limit Limit
	// Store keeps the ends that count for the Limit. Optional: without it they count in this process only.
	Store Store
	Clock clock.PassiveClock
}

// Guard is the termination guard: every call that destroys passes its Intercept. Its methods are safe for concurrent use.
type Guard struct {
	cfg Config

	// counting guards these fields, and is locked before mu.
	counting sync.Mutex
	read     bool  // the window was read from the store
	revision int64 // of the stored window
	// window has the ends that counted in the last Limit.Window, oldest first.
	window window

	mu sync.Mutex
	// admitted are the instances that may end. They do not count again.
	admitted map[string]bool
	// counted are the instances whose end was stored by a request that is not answered yet.
	counted map[string]bool
	// waiting are the instances whose end the limit holds back.
	waiting map[string]waiting
	held    map[string]*held
	open    bool
	// population is the last that a caller of Admit knew.
	population int
}

// waiting is an end that the limit holds back: the namespace of its pod, and when it was last requested.
type waiting struct {
	namespace string
	asked     time.Time
}

// New returns a guard.
func New(cfg Config) *Guard {
	if cfg.Limit == (Limit{}) {
		cfg.Limit = DefaultLimit
	}
	return &Guard{
		cfg:      cfg,
		admitted: map[string]bool{},
		counted:  map[string]bool{},
		waiting:  map[string]waiting{},
		held:     map[string]*held{},
	}
}

// Admit decides whether an instance may end. population is how many cells run a pod and how many instances have no cell, together, now.
// The error is a *HeldError. An instance that is admitted stays so until it is forgotten. An end that counts is stored before Admit
// returns.
func (g *Guard) Admit(ctx context.Context, e End, population int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	because, counts := judge(e, g.known(e.Instance))
	if because == nil && counts {
		g.mu.Unlock()
		limited := g.count(ctx, e, population)
		if e.Heard != nil {
			e.LastHeartbeat = e.Heard()
		}
		g.mu.Lock()
		// While the store was waited for, the cell may have been heard, the store may be known to be behind, or a person may have
		// let the end pass.
		if because, counts = judge(e, g.known(e.Instance)); because == nil && counts {
			because = limited
		}
		delete(g.counted, e.Instance) // it is admitted, or counts again when it is
	}
	if because != nil {
		g.note(e, because, g.cfg.Clock.Now())
		return because
	}
	g.admit(e.Instance)
	return nil
}

// known returns what the guard knows of the end of an instance now. It is called under mu.
func (g *Guard) known(instance string) known {
	now := g.cfg.Clock.Now()
	h := g.held[instance]
	return known{
		now:      now,
		behind:   g.whyBehind(),
		admitted: g.admitted[instance],
		allowed:  g.open || h != nil && h.allowed && now.Sub(h.asked) <= heldFor,
	}
}

// whyBehind returns why the store may not know all instances; "" if it does.
func (g *Guard) whyBehind() string {
	if g.cfg.Behind == nil {
		return ""
	}
	return g.cfg.Behind()
}

// admit is called under mu.
func (g *Guard) admit(instance string) {
	g.admitted[instance] = true
	delete(g.held, instance)
	delete(g.waiting, instance)
}

// Resume admits an end that an earlier process has decided, and stored where it counts.
func (g *Guard) Resume(instance string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit(instance)
}

// Forget forgets an instance that is gone.
func (g *Guard) Forget(instance string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.admitted, instance)
	delete(g.waiting, instance)
	delete(g.held, instance)
}

// Open lets all ends pass from now on, since a person wants everything to end.
func (g *Guard) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
}
