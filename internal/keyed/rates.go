package keyed

import (
	"time"

	"golang.org/x/time/rate"
)

// Rates bound how often something is done, for each key by itself. It is not safe for concurrent use.
type Rates[K comparable] struct {
	// Every is the time from one to the next, when Burst are used up.
	Every time.Duration
	Burst int
	// Keys is how many are told apart; the rest of them share one rate.
	Keys int

	of   map[K]*rate.Limiter
	rest *rate.Limiter
}

// Allow reports whether a key may do it once more now.
func (r *Rates[K]) Allow(key K, now time.Time) bool {
	l := r.of[key]
	if l == nil {
		l = r.enter(key, now)
	}
	return l.AllowN(now, 1)
}

// Len returns how many keys are told apart now.
func (r *Rates[K]) Len() int { return len(r.of) }

func (r *Rates[K]) enter(key K, now time.Time) *rate.Limiter {
	if r.of == nil {
		r.of, r.rest = map[K]*rate.Limiter{}, r.limiter()
	}
	if len(r.of) >= r.Keys {
		for k, l := range r.of { // who did not come for long begins anew
			if l.TokensAt(now) >= float64(r.Burst) {
				delete(r.of, k)
			}
		}
	}
	if len(r.of) >= r.Keys {
		return r.rest
	}
	l := r.limiter()
	r.of[key] = l
	return l
}

func (r *Rates[K]) limiter() *rate.Limiter { return rate.NewLimiter(rate.Every(r.Every), r.Burst) }
