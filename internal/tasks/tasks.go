// Package tasks owns the goroutines of a component that is made first and run later. It does not know what they do.
package tasks

import (
	"context"
	"sync"
)

// Group has tasks that may be given to it before it runs. Its methods are safe for concurrent use.
type Group struct {
	lifetime context.Context
	end      context.CancelFunc

	mu      sync.Mutex // also so that no task starts once Stop waits
	running bool
	pending []func()
	started sync.WaitGroup
}

// New returns a group that does not run yet.
func New() *Group {
	g := &Group{}
	g.lifetime, g.end = context.WithCancel(context.Background())
	return g
}

// Lifetime is a context from New to End. Every task ends when it does.
func (g *Group) Lifetime() context.Context { return g.lifetime }

// Start starts a task, or has Run start it; neither once the lifetime is over.
func (g *Group) Start(task func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.lifetime.Err() != nil:
	case !g.running:
		g.pending = append(g.pending, task)
	default:
		g.started.Go(task)
	}
}

// Run starts the tasks that wait for it. It returns false where it was called before, or once the lifetime is over.
func (g *Group) Run() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running || g.lifetime.Err() != nil {
		return false
	}
	g.running = true
	for _, task := range g.pending {
		g.started.Go(task)
	}
	g.pending = nil
	return true
}

// End ends the lifetime.
func (g *Group) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end()
}

// Stop ends the lifetime and waits until no task is left.
func (g *Group) Stop() {
	g.End()
	g.started.Wait()
}
