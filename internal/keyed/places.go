package keyed

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Places bound how many do something at once: of one key, and of all. The others wait, in the order of coming. Since those of
// one key have only so many places together, that is fair between keys.
type Places[K comparable] struct {
	ofOne int64
	all   *semaphore.Weighted

	mu    sync.Mutex
	of    map[K]*place // of those that have one, or wait
	taken int
}

type place struct {
	own          *semaphore.Weighted
	users, taken int
}

// NewPlaces returns so many places, of which one key has so many at most.
func NewPlaces[K comparable](all, ofOne int64) *Places[K] {
	return &Places[K]{ofOne: ofOne, all: semaphore.NewWeighted(all), of: map[K]*place{}}
}

// Take waits for a place until ctx ends, and then returns its error.
func (p *Places[K]) Take(ctx context.Context, key K) (leave func(), err error) {
	is := p.come(key)
	if err := is.own.Acquire(ctx, 1); err != nil {
		p.gone(key, is)
		return nil, fmt.Errorf("wait for a place among %d of its own: %w", p.ofOne, err)
	}
	if err := p.all.Acquire(ctx, 1); err != nil {
		is.own.Release(1)
		p.gone(key, is)
		return nil, fmt.Errorf("wait for a place among all: %w", err)
	}
	return p.enter(key, is), nil
}

// TryTake takes a place if there is one now.
func (p *Places[K]) TryTake(key K) (leave func(), ok bool) {
	is := p.come(key)
	if !is.own.TryAcquire(1) {
		p.gone(key, is)
		return nil, false
	}
	if !p.all.TryAcquire(1) {
		is.own.Release(1)
		p.gone(key, is)
		return nil, false
	}
	return p.enter(key, is), true
}

// Taken returns how many places are taken, by a key and by all.
func (p *Places[K]) Taken(key K) (own, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if is := p.of[key]; is != nil {
		own = is.taken
	}
	return own, p.taken
}

func (p *Places[K]) come(key K) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	is := p.of[key]
	if is == nil {
		is = &place{own: semaphore.NewWeighted(p.ofOne)}
		p.of[key] = is
	}
	is.users++
	return is
}

// enter returns what gives back a place of its own and one of all.
func (p *Places[K]) enter(key K, is *place) (leave func()) {
	p.count(is, 1)
	return sync.OnceFunc(func() {
		p.count(is, -1)
		p.all.Release(1)
		is.own.Release(1)
		p.gone(key, is)
	})
}

func (p *Places[K]) count(is *place, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	is.taken += n
	p.taken += n
}

func (p *Places[K]) gone(key K, is *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if is.users--; is.users == 0 {
		delete(p.of, key)
	}
}
