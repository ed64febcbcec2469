package agentlimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

func TestAgentsThatDoNotAnswerHoldUpNoneThatDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		paces := make([]Pace, 1000)
		var all sync.WaitGroup
		var mu sync.Mutex
		ended := map[string]int{}
		for n := range paces {
			all.Go(func() {
				switch err := l.Ask(t.Context(), &paces[n], fmt.Sprint(n), 10*time.Second, hangs); {
				case errors.Is(err, ErrSlow):
					mu.Lock()
					defer mu.Unlock()
					ended["asked later"]++
				case errors.Is(err, context.DeadlineExceeded):
					mu.Lock()
					defer mu.Unlock()
					ended["hung"]++
				default:
					t.Errorf("answered %v", err)
				}
			})
		}
		all.Wait()
		if ended["hung"] < slowAsks || ended["asked later"] == 0 || ended["hung"]+ended["asked later"] != len(paces) {
			t.Errorf("of %d: %v", len(paces), ended)
		}
		// Now they are known: all are asked anew, and one that is well.
		began := time.Now()
		for n := range paces {
			all.Go(func() { _ = l.Ask(t.Context(), &paces[n], fmt.Sprint(n), 10*time.Second, hangs) })
		}
		synctest.Wait()
		if _, n := l.slow.Taken(""); n != slowAsks {
			t.Errorf("%d slow ones are asked at the same time, want %d", n, slowAsks)
		}
		var well Pace
		err := l.Ask(t.Context(), &well, "", 10*time.Second, func(context.Context) error { return nil })
		if err != nil || time.Since(began) != 0 {
			t.Errorf("one that is well is asked after %v: %v", time.Since(began), err)
		}
		all.Wait()
		if _, n := l.slow.Taken(""); len(l.quick)+n != 0 {
			t.Errorf("%d and %d are still asked", len(l.quick), n)
		}
	})
}

func TestALoopThatWaitsForALaneIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := New(), watchdog.New(clock.RealClock{}, slog.New(slog.DiscardHandler))
		l.slow = keyed.NewPlaces[string](0, 0)
		slow := &Pace{}
		slow.slow.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			p.Track(ctx, "a loop", func(ctx context.Context) {
				if err := l.Ask(ctx, slow, "", time.Second, func(context.Context) error { return nil }); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		})
		time.Sleep(3 * watchdog.Limit) // virtual
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		cancel()
		running.Wait()
	})
}

func TestAnAgentThatIsWellAgainLeavesTheSlowLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := New(), Pace{}
		for _, step := range []struct {
			takes time.Duration
			slow  bool
		}{{0, false}, {2 * time.Second, true}, {2 * time.Second, true}, {time.Millisecond, false}} {
			err := l.Ask(t.Context(), &p, "", 10*time.Second, func(context.Context) error { time.Sleep(step.takes); return nil })
			if err != nil || p.slow.Load() != step.slow {
				t.Errorf("after one that took %v it is slow: %t, %v", step.takes, p.slow.Load(), err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		l.slow = keyed.NewPlaces[string](0, 0)
		p.slow.Store(true)
		cancel()
		if err := l.Ask(ctx, &p, "", time.Second, func(context.Context) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("one that waits when its caller is gone is answered %v", err)
		}
	})
}

func TestAgentsOfOneShareDoNotFillTheSlowLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		paces := make([]Pace, 1000)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for n := range paces {
			paces[n].slow.Store(true)
			all.Go(func() {
				_ = l.Ask(ctx, &paces[n], "large", time.Hour, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			})
		}
		synctest.Wait()
		slow := &Pace{}
		for _, first := range []bool{true, false} { // it turns slow, and is slow
			began := time.Now()
			err := l.Ask(ctx, slow, "small", 10*time.Second, func(ctx context.Context) error {
				select {
				case <-time.After(2 * time.Second):
				case <-ctx.Done():
				}
				return context.Cause(ctx)
			})
			if took := time.Since(began); err != nil || took != 2*time.Second {
				t.Errorf("the first time %t: answered %v after %v", first, err, took)
			}
		}
		cancel()
		all.Wait()
	})
}
