package pipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"k8s.io/utils/clock"
)

func TestCallsKeepToTheBucketsOfEC2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare, err := sim.New(sim.Config{
			Catalogue: []catalog.InstanceType{{Name: "nano", Offerings: []catalog.PurchaseOption{{Zone: "z"}}}},
			Knobs:     sim.Knobs{RateLimits: sim.EC2RateLimits()},
		})
		if err != nil {
			t.Fatal(err)
		}
		c := New(Config{Cloud: bare, Random: one, Clock: clock.RealClock{}})
		first := cloud.LaunchRequest{Token: "t", LaunchSpec: cloud.LaunchSpec{
			InstanceType: "nano", Zone: "z", Tags: map[string]string{cloud.TagOwner: "me"},
		}}
		first.Machines = make([]cloud.Machine, 20)
		started, err := c.Launch(t.Context(), first).All()
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for n := range 1500 {
			all.Go(func() {
				if err := c.Terminate(t.Context(), fmt.Sprint("unknown-", n)).Err(); err != nil {
					t.Error(err)
				}
				if err := c.Optional().Stopper.Start(t.Context(), started[n%20].ID).Err(); err != nil {
					t.Error(err)
				}
			})
		}
		for range 300 {
			all.Go(func() {
				if _, err := c.List(t.Context(), "me"); err != nil {
					t.Error(err)
				}
				r := cloud.LaunchRequest{Machines: make([]cloud.Machine, 1)}
				if err := c.Launch(t.Context(), r).Err(); !errors.Is(err, cloud.ErrRefused) { // it has no token
					t.Error(err)
				}
			})
		}
		all.Wait()
		if err := bare.Close(); err != nil {
			t.Fatal(err)
		}
		n := map[sim.Kind]int{}
		for key, count := range bare.Calls() {
			if n[key.Kind] += count; key.Outcome == sim.Throttled {
				t.Errorf("%d calls of kind %s were throttled", count, key.Kind)
			}
		}
		if n[sim.KindList] != 300 || n[sim.KindLaunch] != 301 || n[sim.KindTerminate] > 200 || n[sim.KindStart] > 1000 {
			t.Errorf("called %v", n)
		}
	})
}

func TestResourcesAreABudgetOfTheirOwn(t *testing.T) {
	capabilities := cloud.Capabilities{Budgets: map[cloud.Call]cloud.Budget{
		cloud.CallStop:   {Resources: cloud.Bucket{Capacity: 2, Refill: 1}},
		cloud.CallLaunch: {Resources: cloud.Bucket{Capacity: 4, Refill: 2}},
	}}
	with(t, capabilities, func(t *testing.T, c *Pipe, told *told) {
		if err := c.Optional().Stopper.Stop(t.Context(), "a", "b", "c", "d").Err(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a launch is sent whole
			if err := c.Launch(t.Context(), cloud.LaunchRequest{Machines: make([]cloud.Machine, 3)}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := told.sent(), []string{"0s stop a,b", "1s stop c", "2s stop d", "2s launch 3", "3s launch 3"}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
}

func TestAKindThatIsThrottledWaitsAsAWholeAndNoOtherDoes(t *testing.T) {
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
		told.answers = func(_ context.Context, kind cloud.Call, _ string) error {
			switch since := time.Since(told.began); {
			case kind != cloud.CallList:
				return nil
			case since < 2*time.Second:
				return throttledNow(0)
			case since < 10*time.Second:
				return throttledNow(20 * time.Second)
			}
			return nil
		}
		var all sync.WaitGroup
		for n := range 3 {
			all.Go(func() {
				if _, err := c.List(t.Context(), fmt.Sprint(n)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(1500 * time.Millisecond)
		if got := c.Waits(cloud.CallList); !strings.Contains(got, "throttled") {
			t.Errorf("lists wait for %q", got)
		}
		if err := c.Terminate(t.Context(), "a").Err(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		var times []string
		for _, s := range told.sent() {
			times = append(times, strings.Join(strings.Fields(s)[:2], " "))
		}
		// One list tries whether it is over, after 1 s, then 2, then what the cloud says.
		// When it is, the others follow.
		want := []string{"0s list", "1s list", "1.5s terminate", "3s list", "23s list", "23s list", "23s list"}
		if !slices.Equal(times, want) {
			t.Errorf("sent %q, want %q", times, want)
		}
	})
}

func TestCallsThatAreThrottledTogetherCountOnce(t *testing.T) {
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
		told.answers = func(context.Context, cloud.Call, string) error {
			time.Sleep(100 * time.Millisecond)
			if time.Since(told.began) < time.Second {
				return throttledNow(0)
			}
			return nil
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, err := c.List(t.Context(), "me"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(told.began); took > 2*time.Second {
			t.Errorf("20 that were throttled together took %v: want one pause, of a second", took)
		}
	})
}

func TestAKindThatHangsHoldsUpNoOtherAndIsBounded(t *testing.T) {
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
		told.answers = func(ctx context.Context, kind cloud.Call, _ string) error {
			if kind == cloud.CallAttachDisk {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range most + 1 {
			all.Go(func() {
				if err := c.Optional().Disks.AttachDisk(ctx, "d", "i"); err == nil {
					t.Error("a disk was attached that is not")
				}
			})
		}
		synctest.Wait()
		if n := len(told.sent()); n != most {
			t.Errorf("%d are under way, want %d", n, most)
		}
		if got := c.Waits(cloud.CallAttachDisk); !strings.Contains(got, "no answer yet") {
			t.Errorf("the last waits for %q", got)
		}
		if err := c.Terminate(t.Context(), "a").Err(); err != nil || time.Since(told.began) != 0 {
			t.Errorf("a termination took %v: %v", time.Since(told.began), err)
		}
		time.Sleep(Timeout)
		synctest.Wait()
		if n := len(told.sent()); n != most+2 {
			t.Errorf("%d were sent when the first had their time, want all", n-1)
		}
		cancel()
		all.Wait()
	})
}

func TestATurnThatIsCancelledCostsNothing(t *testing.T) {
	with(t, budget(cloud.CallLaunch, 1, 1), func(t *testing.T, c *Pipe, told *told) {
		for range 3 {
			turn, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
			if err != nil {
				t.Fatal(err)
			}
			turn.Cancel()
			turn.Cancel() // as where it is cancelled anyway once all is over
		}
		if took := time.Since(told.began); took != 0 {
			t.Errorf("it took %v", took)
		}
		c.limiter.mu.Lock()
		defer c.limiter.mu.Unlock()
		if k := c.limiter.kinds[cloud.CallLaunch]; k.underWay != 0 || k.requests.tokens != k.requests.Capacity {
			t.Errorf("%d calls are under way, %v requests are left of %v", k.underWay, k.requests.tokens, k.requests.Capacity)
		}
	})
}

// As where throttling and answers that never come are of one fault.
func TestACallThatHangsAfterOneThatWasThrottledHoldsUpNoOtherForLong(t *testing.T) {
	with(t, budget(cloud.CallLaunch, 100, 100), func(t *testing.T, c *Pipe, told *told) {
		var hung atomic.Int32
		told.answers = func(ctx context.Context, _ cloud.Call, _ string) error {
			switch {
			case time.Since(told.began) == 0:
				return throttledNow(0)
			case hung.Add(1) <= 2:
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		r := cloud.LaunchRequest{Machines: make([]cloud.Machine, 1)}
		if err := c.Launch(t.Context(), r).Err(); !errors.Is(err, cloud.ErrThrottled) {
			t.Fatal(err)
		}
		began := time.Now()
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if err := c.Launch(t.Context(), r).Err(); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("one that hangs ends with %v", err)
				}
			})
			synctest.Wait()
		}
		if err := c.Launch(t.Context(), r).Err(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < hangAfter || took > 4*hangAfter {
			t.Errorf("the one behind them took %v", took)
		}
		all.Wait()
	})
}

func TestATurnThatIsSetAsideTakesNoPlaceAndWaitsForOneAgain(t *testing.T) {
	with(t, budget(cloud.CallLaunch, 3, 1), func(t *testing.T, c *Pipe, told *told) {
		told.answers = func(context.Context, cloud.Call, string) error {
			if time.Since(told.began) == 0 {
				return throttledNow(0)
			}
			time.Sleep(4 * time.Second)
			return nil
		}
		r := cloud.LaunchRequest{Machines: make([]cloud.Machine, 1)}
		if err := c.Launch(t.Context(), r).Err(); !errors.Is(err, cloud.ErrThrottled) {
			t.Fatal(err)
		}
		// From here on one is under way at a time.
		aside, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
		if err != nil {
			t.Fatal(err)
		}
		aside.Yield()
		var all sync.WaitGroup
		all.Go(func() {
			if err := c.Launch(t.Context(), r).Err(); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := told.sent(); len(got) != 2 || got[1] != "2s launch 1" {
			t.Fatalf("sent %q: want the second one as soon as its request is paid", got)
		}
		if err := aside.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if since := time.Since(told.began); since != 6*time.Second {
			t.Errorf("the one that was set aside goes on after %v, want 6s, when the other has its answer", since)
		}
		c.limiter.mu.Lock()
		if b := c.limiter.kinds[cloud.CallLaunch].requests; b.tokens != b.Capacity {
			t.Errorf("%v requests are left of %v: it has paid twice", b.tokens, b.Capacity)
		}
		c.limiter.mu.Unlock()
		aside.Cancel()
		all.Wait()
		// It costs as little, and no more places are free than there are.
		for range 2 {
			turn, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
			if err != nil {
				t.Fatal(err)
			}
			turn.Yield()
			turn.Cancel()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
		if err != nil {
			t.Fatal(err)
		}
		late.Yield()
		var held []*Turn
		for range 2 {
			turn, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, turn)
		}
		_, unsent := errors.AsType[*UnsentError](late.Resume(ctx))
		if !unsent {
			t.Error("a turn goes on while as many are under way as may be")
		}
		for _, turn := range held {
			turn.Cancel()
		}
		c.limiter.mu.Lock()
		defer c.limiter.mu.Unlock()
		if l := c.limiter.kinds[cloud.CallLaunch]; l.underWay != 0 || l.requests.tokens != l.requests.Capacity {
			t.Errorf("in the end %d are under way, and %v requests are left of %v", l.underWay, l.requests.tokens, l.requests.Capacity)
		}
	})
}

// Nothing is added to a budget before the first answer: who waits for that must not be before
// the one that will have it.
func TestATurnThatIsSetAsideGoesOnBeforeThoseThatLackABudget(t *testing.T) {
	with(t, budget(cloud.CallLaunch, 1, 1), func(t *testing.T, c *Pipe, told *told) {
		aside, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
		if err != nil {
			t.Fatal(err)
		}
		aside.Yield()
		var all sync.WaitGroup
		all.Go(func() {
			if err := c.Launch(t.Context(), cloud.LaunchRequest{Machines: make([]cloud.Machine, 2)}).Err(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := aside.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if err := aside.Launch(t.Context(), cloud.LaunchRequest{Machines: make([]cloud.Machine, 1)}).Err(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		if got := told.sent(); !slices.Equal(got, []string{"0s launch 1", "1s launch 2"}) {
			t.Errorf("sent %q", got)
		}
	})
}

func TestAThrottledLaunchIsItsCallersToRepeat(t *testing.T) {
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
		told.answers = func(context.Context, cloud.Call, string) error {
			if time.Since(told.began) == 0 {
				return throttledNow(0)
			}
			return nil
		}
		r := cloud.LaunchRequest{Machines: make([]cloud.Machine, 2)}
		if err := c.Launch(t.Context(), r).Err(); !errors.Is(err, cloud.ErrThrottled) {
			t.Errorf("the first was answered %v", err)
		}
		if err := c.Launch(t.Context(), r).Err(); err != nil || time.Since(told.began) != time.Second {
			t.Errorf("the second was answered %v after %v", err, time.Since(told.began))
		}
	})
}

// waits is a Meter that sums.
type waits struct {
	mu    sync.Mutex
	now   int
	began int
	took  time.Duration
}

func (w *waits) CallWaits(cloud.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now++
	w.began++
}

func (w *waits) CallWaited(_ cloud.Call, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now--
	w.took += d
}

func (*waits) Intercept(ctx context.Context, call Call, next Send) []Answer { return next(ctx, call) }
func (*waits) InstanceInterrupted()                                         {}

func TestWaitsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &waits{}
		c := New(Config{Cloud: &told{capabilities: budget(cloud.CallList, 1, 1)}, Random: one, Meter: w, Clock: clock.RealClock{}})
		for range 3 {
			if _, err := c.List(t.Context(), "me"); err != nil {
				t.Fatal(err)
			}
		}
		if w.began != 3 || w.now != 0 || w.took != 2*time.Second {
			t.Errorf("%d waited for %v, %d wait: want 3, 2 s and none", w.began, w.took, w.now)
		}
	})
}

func TestWhatDestroysHasABudgetOnEveryCloud(t *testing.T) {
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
		for range int(hasty.Capacity) + 20 { // as one that asks again and again
			if err := c.Optional().Stopper.Stop(t.Context(), "a").Err(); err != nil {
				t.Fatal(err)
			}
			if err := c.Optional().Stopper.Start(t.Context(), "a").Err(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(told.began); took != 2*time.Second {
			t.Errorf("so many stops took %v, want 2 s for the last 20", took)
		}
	})
}
