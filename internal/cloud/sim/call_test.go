package sim

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

func TestRateLimitsAreTokenBucketsFilledEachSecond(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{RateLimits: EC2RateLimits()}}, func(t *testing.T, c *Cloud) {
		n := 0
		// burst calls until the cloud has enough, and returns how many it answered.
		burst := func() (answered int) {
			for {
				n++
				_, err := try(ctx, c, request(fmt.Sprint(n), 1))
				if err != nil {
					if !errors.Is(err, cloud.ErrThrottled) || cloud.Refused(err) {
						t.Fatalf("got %v: want ErrThrottled", err)
					}
					return answered
				}
				answered++
			}
		}
		if got := burst(); got != 5 {
			t.Errorf("answered %d launches at first: want 5", got)
		}
		pass(999 * time.Millisecond)
		if got := burst(); got != 0 {
			t.Errorf("answered %d launches within the second: want 0", got)
		}
		pass(time.Millisecond)
		if got := burst(); got != 2 {
			t.Errorf("answered %d launches a second later: want 2", got)
		}
		pass(1500 * time.Millisecond)
		if got := burst(); got != 2 {
			t.Errorf("answered %d launches 1.5 seconds later: want 2", got)
		}
		pass(500 * time.Millisecond)
		if got := burst(); got != 2 {
			t.Errorf("answered %d launches half a second later, at the full second: want 2", got)
		}
		pass(time.Hour)
		if got := burst(); got != 5 {
			t.Errorf("answered %d launches after an hour: want 5", got)
		}
		if got := len(c.Truth()); got != 16 {
			t.Errorf("%d instances run: want those of the 16 answers", got)
		}
		list(t, c) // another kind has other buckets
	})
}

func TestResourceLimitsCountInstances(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{RateLimits: map[Kind]RateLimit{
		KindLaunch:    {Resources: Bucket{Capacity: 100, Refill: 2}},
		KindTerminate: {Resources: Bucket{Capacity: 10, Refill: 20}},
	}}}, func(t *testing.T, c *Cloud) {
		first := request("1", 50)
		launch(t, c, first)
		got := launch(t, c, request("2", 49))
		if _, err := try(ctx, c, request("3", 2)); !errors.Is(err, cloud.ErrThrottled) {
			t.Errorf("the 101st instance got %v: want ErrThrottled", err)
		}
		launch(t, c, first) // a repeated launch takes nothing
		launch(t, c, request("3", 1))
		pass(time.Second)
		if _, err := try(ctx, c, request("4", 3)); !errors.Is(err, cloud.ErrThrottled) {
			t.Errorf("three instances a second later got %v: want ErrThrottled", err)
		}
		launch(t, c, request("4", 2))

		if err := c.Terminate(ctx, ids(got)[:11]...).Err(); !errors.Is(err, cloud.ErrThrottled) || len(c.Truth()) != 102 {
			t.Errorf("terminating 11 got %v and left %d: want ErrThrottled and 102", err, len(c.Truth()))
		}
		ok(t, c.Terminate(ctx, ids(got)[:10]...).Err())
		ok(t, c.Change(func(k *Knobs) { delete(k.RateLimits, KindTerminate) }))
		ok(t, c.Terminate(ctx, ids(got)...).Err())
	})
}

// TestFaults shows, for each way a call can fail, what its caller sees and what
// it did.
func TestFaults(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		fault   Fault
		err     error // for a caller who waits a minute
		started bool
		took    time.Duration
		outcome Outcome
	}{
		"none":           {Fault{}, nil, true, 2 * time.Second, OK},
		"before":         {Fault{Before: boom}, boom, false, time.Second, Failed},
		"a definite no":  {Fault{Before: cloud.ErrQuota}, cloud.ErrQuota, false, time.Second, OverQuota},
		"throttled":      {Fault{Before: cloud.ErrThrottled}, cloud.ErrThrottled, false, time.Second, Throttled},
		"after":          {Fault{After: boom}, boom, true, 2 * time.Second, Lost},
		"hang before":    {Fault{HangBefore: true}, context.DeadlineExceeded, false, time.Minute, Failed},
		"hang after":     {Fault{HangAfter: true}, context.DeadlineExceeded, true, time.Minute, Lost},
		"delay":          {Fault{Delay: 3 * time.Second}, nil, true, 5 * time.Second, OK},
		"delay too long": {Fault{Delay: 2 * time.Minute}, context.DeadlineExceeded, false, time.Minute, Failed},
	} {
		for way, plan := range map[string]func(*Config) func(*Cloud){
			"hook": func(cfg *Config) func(*Cloud) {
				cfg.Fault = func(Call) Fault { return test.fault }
				return func(*Cloud) {}
			},
			"nth":    func(*Config) func(*Cloud) { return func(c *Cloud) { c.FailNth(KindLaunch, 1, test.fault) } },
			"of all": func(*Config) func(*Cloud) { return func(c *Cloud) { c.FailNth(AnyKind, 1, test.fault) } },
		} {
			t.Run(name+"/"+way, func(t *testing.T) {
				cfg := Config{Knobs: Knobs{Latency: map[Kind]Distribution{KindLaunch: always(2 * time.Second)}}}
				then := plan(&cfg)
				inBubble(t, cfg, func(t *testing.T, c *Cloud) {
					then(c)
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					began := time.Now()
					got, err := try(ctx, c, request("1", 2))
					if !errors.Is(err, test.err) || (err == nil) != (len(got) == 2) {
						t.Errorf("got %v, %v: want %v", ids(got), err, test.err)
					}
					if took := time.Since(began); took != test.took {
						t.Errorf("took %v: want %v", took, test.took)
					}
					if started := len(c.Truth()) == 2; started != test.started {
						t.Errorf("started: %t: want %t", started, test.started)
					}
					if want := map[CallKey]int{{KindLaunch, test.outcome}: 1}; !reflect.DeepEqual(c.Calls(), want) {
						t.Errorf("counted %v: want %v", c.Calls(), want)
					}
				})
			})
		}
	}
}

// TestACallerCanBeKilledAtAnyCall kills one at each call of its work, before and
// after the effect: the context that ends is the caller's.
func TestACallerCanBeKilledAtAnyCall(t *testing.T) {
	work := func(ctx context.Context, c *Cloud) error {
		got, err := try(ctx, c, request("1", 1))
		if err != nil {
			return err
		}
		if _, err := c.List(ctx, owner); err != nil {
			return err
		}
		return c.Terminate(ctx, ids(got)...).Err()
	}
	for n, want := range []struct{ before, after int }{{0, 1}, {1, 1}, {1, 0}} {
		for _, after := range []bool{false, true} {
			life, kill := context.WithCancel(ctx)
			var calls []Call
			inBubble(t, Config{Fault: func(call Call) Fault {
				calls = append(calls, call)
				switch {
				case call.Total != n+1:
					return Fault{}
				case after:
					return Fault{Then: kill}
				}
				kill()
				return Fault{}
			}}, func(t *testing.T, c *Cloud) {
				if err := work(life, c); !errors.Is(err, context.Canceled) {
					t.Errorf("call %d: got %v: want to be killed", n+1, err)
				}
				run := want.before
				if after {
					run = want.after
				}
				if got := len(c.Truth()); got != run || len(calls) != n+1 {
					t.Errorf("killed at call %d (after its effect: %t): %d instances after %d calls: want %d after %d", n+1, after, got, len(calls), run,
						n+1)
				}
				if calls[0].Kind != KindLaunch || calls[0].Launch.Token != "1" || calls[0].N != 1 {
					t.Errorf("the first call was told as %+v", calls[0])
				}
			})
		}
	}
}

func TestFailNthCountsFromNow(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, c *Cloud) {
		list(t, c)
		c.FailNth(KindList, 3, Fault{Before: ErrLost})
		c.FailNth(AnyKind, 2, Fault{Before: ErrInternal})
		var got []error
		for range 4 {
			_, err := c.List(ctx, owner)
			got = append(got, errors.Unwrap(err))
		}
		if want := []error{nil, ErrInternal, ErrLost, nil}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v: want %v", got, want)
		}
	})
}

func TestFaultsByChanceAreAsFrequentAsSaidAndTheSameForASeed(t *testing.T) {
	rates := FaultRates{Failed: 0.1, LostBefore: 0.05, LostAfter: 0.1, HangBefore: 0.05, HangAfter: 0.1}
	history := func(seed uint64) (done []bool, errs [4]int) {
		inBubble(t, Config{Seed: seed, Knobs: Knobs{Faults: map[Kind]FaultRates{AnyKind: rates, KindList: {}}}}, func(t *testing.T, c *Cloud) {
			for n := range 2000 {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				before := len(c.machines.all)
				_, err := try(ctx, c, request(fmt.Sprint(n), 1))
				cancel()
				effect := len(c.machines.all) > before
				done = append(done, effect)
				hung := errors.Is(err, context.DeadlineExceeded)
				switch {
				case err == nil && effect:
				case errors.Is(err, ErrInternal) && !effect:
					errs[0]++
				case errors.Is(err, ErrLost):
					errs[1]++
				case hung && !effect:
					errs[2]++
				case hung:
					errs[3]++
				default:
					t.Fatalf("launch %d got %v; started: %t", n, err, effect)
				}
			}
			for range 100 {
				list(t, c)
			}
			calls := c.Calls()
			if lost := calls[CallKey{KindLaunch, Lost}]; lost < 340 || lost > 460 {
				t.Errorf("%d of 2000 answers were lost after the effect: want about 400", lost)
			}
			if calls[CallKey{KindList, OK}] != 100 {
				t.Errorf("counted %v: want 100 good lists", calls)
			}
		})
		return done, errs
	}
	done, errs := history(7)
	// The bounds are four standard deviations and more from the means.
	for i, want := range [4]int{200, 300, 100, 200} {
		if errs[i] < want*7/10 || errs[i] > want*13/10 {
			t.Errorf("fault %d happened %d times in 2000: want about %d", i, errs[i], want)
		}
	}
	again, _ := history(7)
	other, _ := history(8)
	if !reflect.DeepEqual(done, again) || reflect.DeepEqual(done, other) {
		t.Error("the seed does not decide what happens")
	}
}

func TestRevokedCredentialsRefuseEverything(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, c *Cloud) {
		got := launch(t, c, request("1", 1))
		watch := make(chan error, 1)
		go func() { watch <- c.Interrupter.Interruptions(ctx, cloud.Listener{Notify: func(cloud.Interruption) {}}) }()
		synctest.Wait()
		ok(t, c.Change(func(k *Knobs) { k.Unauthorised = true }))
		if err := <-watch; !errors.Is(err, cloud.ErrUnauthorised) {
			t.Errorf("the watch ended with %v: want ErrUnauthorised", err)
		}
		for name, call := range map[string]func() error{
			"catalogue": func() error { _, err := c.Catalogue(ctx); return err },
			"launch":    func() error { _, err := try(ctx, c, request("2", 1)); return err },
			"list":      func() error { _, err := c.List(ctx, owner); return err },
			"terminate": func() error { return c.Terminate(ctx, got[0].ID).Err() },
			"stop":      func() error { return c.Stopper.Stop(ctx, got[0].ID).Err() },
			"start":     func() error { return c.Stopper.Start(ctx, got[0].ID).Err() },
			"interruptions": func() error {
				return c.Interrupter.Interruptions(ctx, cloud.Listener{Notify: func(cloud.Interruption) {}})
			},
		} {
			if err := call(); !errors.Is(err, cloud.ErrUnauthorised) || !cloud.Refused(err) {
				t.Errorf("%s got %v: want ErrUnauthorised", name, err)
			}
		}
		if !equal(trueIDs(c), ids(got)) {
			t.Errorf("%v run: want %v, as before", trueIDs(c), ids(got))
		}
		ok(t, c.Change(func(k *Knobs) { k.Unauthorised = false }))
		list(t, c)
	})
}

func TestCloseEndsCallsUnderWay(t *testing.T) {
	inBubble(t, Config{Knobs: Knobs{Latency: map[Kind]Distribution{KindList: always(time.Hour)}}}, func(t *testing.T, c *Cloud) {
		c.FailNth(KindLaunch, 1, Fault{HangBefore: true})
		errs := make(chan error, 3)
		go func() { _, err := try(ctx, c, request("1", 1)); errs <- err }()
		go func() { _, err := c.List(ctx, owner); errs <- err }()
		go func() { errs <- c.Interrupter.Interruptions(ctx, cloud.Listener{Notify: func(cloud.Interruption) {}}) }()
		synctest.Wait()
		c.Close()
		for range 3 {
			if err := <-errs; !errors.Is(err, errClosed) {
				t.Errorf("got %v: want errClosed", err)
			}
		}
		if err := c.Terminate(ctx, "i-1").Err(); !errors.Is(err, errClosed) {
			t.Errorf("a later call got %v: want errClosed", err)
		}
	})
}
