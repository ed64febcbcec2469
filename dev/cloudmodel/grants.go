package cloudmodel

import (
	"errors"
	"sync"
	"time"
)

// Why a secret grants nothing.
var (
	errNotGranted = errors.New("nothing was granted by this secret")
	ErrGrantOver  = errors.New("what was granted by this secret has expired")
)

// Grants are secrets by which those who show them have a T for a time: the keys of sessions, tokens. The zero value is without any.
// It is safe for concurrent use.
type Grants[T any] struct {
	mu  sync.Mutex
	all map[string]grant[T] // by secret
}

type grant[T any] struct {
	of    T
	until time.Time
}

// Give lets a secret grant something until then.
func (g *Grants[T]) Give(secret string, of T, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[string]grant[T]{}
	}
	g.all[secret] = grant[T]{of, until}
}

// Of returns what a secret grants now. It returns errNotGranted or ErrGrantOver if that is nothing.
func (g *Grants[T]) Of(secret string, now time.Time) (of T, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one, has := g.all[secret]
	switch {
	case !has:
		return of, errNotGranted
	case !now.Before(one.until):
		return of, ErrGrantOver
	}
	return one.of, nil
}
