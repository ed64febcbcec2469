package keyed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAKeyHasNoMoreThanItsPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces[string](3, 2)
		var mu sync.Mutex
		var leave []func()
		take := func(key string) (waits func() bool) {
			done := false
			go func() {
				l, err := p.Take(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				done, leave = true, append(leave, l)
			}()
			waits = func() bool {
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				return !done
			}
			waits()
			return waits
		}
		allLeave := func() (n int) {
			mu.Lock()
			all := slices.Clone(leave)
			mu.Unlock()
			for _, l := range all {
				l()
			}
			synctest.Wait()
			return len(all)
		}
		first, second, third := take("a"), take("a"), take("a")
		other, later := take("b"), take("c")
		if first() || second() || other() || !third() || !later() {
			t.Error("of three places two are one key's: want its third, and the fourth of all, to wait")
		}
		if own, all := p.Taken("a"); own != 2 || all != 3 {
			t.Errorf("taken %d of one, %d of all, want 2 and 3", own, all)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, key := range []string{"a", "d"} { // the one has no place of its own, the other none of all
			if _, ok := p.TryTake(key); ok {
				t.Errorf("%s got a place, and there is none", key)
			}
			if _, err := p.Take(ctx, key); !errors.Is(err, context.Canceled) {
				t.Errorf("who waits no more is told %v", err)
			}
		}
		mu.Lock()
		one := leave[0]
		mu.Unlock()
		one()
		one() // counts once
		if third() && later() || !third() && !later() {
			t.Error("when one leaves, want one of those that wait to come")
		}
		for allLeave() < 5 {
		}
		allLeave()
		tried, ok := p.TryTake("a")
		if own, all := p.Taken("a"); !ok || own != 1 || all != 1 {
			t.Errorf("who tries gets a place %t, and %d and %d are taken", ok, own, all)
		} else {
			tried()
		}
		if own, all := p.Taken("a"); own != 0 || all != 0 || len(p.of) != 0 {
			t.Errorf("when all have left %d and %d are taken, and %d keys are known", own, all, len(p.of))
		}
	})
}

func TestEachKeyHasARateOfItsOwn(t *testing.T) {
	r := Rates[string]{Every: time.Second, Burst: 3, Keys: 4}
	now := time.Unix(1000, 0)
	allowed := func(n int, key string) (times int) {
		for range n {
			if r.Allow(key, now) {
				times++
			}
		}
		return times
	}
	if a, b := allowed(10, "a"), allowed(2, "b"); a != 3 || b != 2 {
		t.Errorf("allowed %d and %d times, want 3 and 2", a, b)
	}
	now = now.Add(2 * time.Second)
	if n := allowed(10, "a"); n != 2 {
		t.Errorf("allowed %d times after two seconds, want 2", n)
	}
	rest := 0
	for n := range 100 {
		rest += allowed(1, fmt.Sprint("flood", n))
	}
	if rest != 3+3 || r.Len() != 4 { // three more keys, since b has all of its rate again, and one rate for the rest
		t.Errorf("of a hundred keys more %d are allowed, and %d are told apart: want 6 and 4", rest, r.Len())
	}
	now = now.Add(time.Hour)
	if n := allowed(10, "new"); n != 3 || r.Len() != 1 {
		t.Errorf("an hour later a new key is allowed %d times, and %d are told apart: want 3 and 1", n, r.Len())
	}
}
