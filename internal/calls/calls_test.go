package calls

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

// told is a cloud that does what a test says, and writes down what it was asked.
type told struct {
	cloud.Cloud
	cloud.Disks
	traits cloud.Traits
	// answers says what a call is answered with; nil for no error.
	answers func(ctx context.Context, kind cloud.Call, id string) error
	// whole says what a call is refused with as a whole; nil for nothing.
	whole func(ids []string) error

	mu    sync.Mutex
	began time.Time
	calls []string
}

func (c *told) Traits() cloud.Traits     { return c.traits }
func (c *told) Features() cloud.Features { return cloud.Features{Disks: c, Stopper: c} }

func (c *told) each(ctx context.Context, kind cloud.Call, ids ...string) cloud.Results {
	c.mu.Lock()
	c.calls = append(c.calls, fmt.Sprintf("%v %s %s", time.Since(c.began), kind, strings.Join(ids, ",")))
	c.mu.Unlock()
	if c.whole != nil {
		if err := c.whole(ids); err != nil {
			return cloud.Each(err, ids...)
		}
	}
	results := cloud.Each(nil, ids...)
	for n, id := range ids {
		if c.answers != nil {
			results[n].Err = c.answers(ctx, kind, id)
		}
	}
	return results
}

func (c *told) Terminate(ctx context.Context, ids ...string) cloud.Results {
	return c.each(ctx, cloud.CallTerminate, ids...)
}

func (c *told) Stop(ctx context.Context, ids ...string) cloud.Results {
	return c.each(ctx, cloud.CallStop, ids...)
}

func (c *told) Start(ctx context.Context, ids ...string) cloud.Results {
	return c.each(ctx, cloud.CallStart, ids...)
}

func (c *told) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	if err := c.each(ctx, cloud.CallDescribe, ids...).Err(); err != nil {
		return nil, err
	}
	instances := make([]cloud.Instance, len(ids))
	for n, id := range ids {
		instances[n] = cloud.Instance{ID: id, State: cloud.Running}
	}
	return instances, nil
}

func (c *told) List(ctx context.Context, owner string) (cloud.Listing, error) {
	return cloud.Listing{}, c.each(ctx, cloud.CallList, owner).Err()
}

func (c *told) AttachDisk(ctx context.Context, id, _ string) error {
	return c.each(ctx, cloud.CallAttachDisk, id).Err()
}

func (c *told) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	return cloud.NotLaunched(len(r.Machines), c.each(ctx, cloud.CallLaunch, fmt.Sprint(len(r.Machines))).Err())
}

// sent are the calls, each after the time since the beginning, in their order.
func (c *told) sent() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func one() float64 { return 1 } // no jitter

// with runs f in virtual time.
func with(t *testing.T, traits cloud.Traits, f func(t *testing.T, c *Calls, told *told)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cl := &told{traits: traits, began: time.Now()}
		f(t, New(Config{Cloud: cl, Random: one, Clock: clock.RealClock{}}), cl)
	})
}

func budget(kind cloud.Call, capacity, refill float64) cloud.Traits {
	return cloud.Traits{Budgets: map[cloud.Call]cloud.Budget{kind: {Requests: cloud.Bucket{Capacity: capacity, Refill: refill}}}}
}

// throttledNow is a cloud's answer to a call that did nothing.
func throttledNow(after time.Duration) error {
	return &cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: after, NothingDone: true}
}

func TestCallsKeepToTheBucketsOfEC2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare, err := sim.New(sim.Config{
			Catalogue: []catalog.InstanceType{{Name: "nano", Offerings: []catalog.Offering{{Zone: "z"}}}},
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
				if err := c.Features().Stopper.Start(t.Context(), started[n%20].ID).Err(); err != nil {
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

func TestWhatWaitsForTheSameBudgetGoesInOneCall(t *testing.T) {
	with(t, budget(cloud.CallTerminate, 1, 0.5), func(t *testing.T, c *Calls, told *told) {
		refused := errors.New("it is protected")
		told.answers = func(_ context.Context, _ cloud.Call, id string) error {
			if id == "c" {
				return refused
			}
			return nil
		}
		if err := c.Terminate(t.Context(), "a").Err(); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, ids := range [][]string{{"b"}, {"c", "d"}, {"b", "e"}} {
			all.Go(func() {
				for n, r := range c.Terminate(t.Context(), ids...) {
					if r.ID != ids[n] || (r.Err != nil) != (r.ID == "c") {
						t.Errorf("%v were answered %v", ids, r)
					}
				}
			})
			synctest.Wait()
		}
		if got := c.Waits(cloud.CallTerminate); !strings.Contains(got, "budget") {
			t.Errorf("they wait for %q", got)
		}
		all.Wait()
		if got, want := told.sent(), []string{"0s terminate a", "2s terminate b,c,d,e"}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		if got := c.Waits(cloud.CallTerminate); got != "" {
			t.Errorf("nothing waits, and it waits for %q", got)
		}
	})
}

func TestResourcesAreABudgetOfTheirOwn(t *testing.T) {
	traits := cloud.Traits{Budgets: map[cloud.Call]cloud.Budget{
		cloud.CallStop:   {Resources: cloud.Bucket{Capacity: 2, Refill: 1}},
		cloud.CallLaunch: {Resources: cloud.Bucket{Capacity: 4, Refill: 2}},
	}}
	with(t, traits, func(t *testing.T, c *Calls, told *told) {
		if err := c.Features().Stopper.Stop(t.Context(), "a", "b", "c", "d").Err(); err != nil {
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
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
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
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
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
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
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
				if err := c.Features().Disks.AttachDisk(ctx, "d", "i"); err == nil {
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

func TestWhatIsThrottledOfACallIsSentAgainAndTheRestIsAnswered(t *testing.T) {
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
		told.answers = func(_ context.Context, _ cloud.Call, id string) error {
			if id == "b" && time.Since(told.began) == 0 {
				return throttledNow(0)
			}
			return nil
		}
		if err := c.Terminate(t.Context(), "a", "b").Err(); err != nil {
			t.Fatal(err)
		}
		if got, want := told.sent(), []string{"0s terminate a,b", "1s terminate b"}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
}

func TestACallThatIsThrottledAsAWholeIsMadeInSmallerOnes(t *testing.T) {
	traits := cloud.Traits{Budgets: map[cloud.Call]cloud.Budget{
		cloud.CallTerminate: {Resources: cloud.Bucket{Capacity: 100, Refill: 20}},
	}}
	with(t, traits, func(t *testing.T, c *Calls, told *told) {
		told.whole = func(ids []string) error { // others leave tokens for six
			if len(ids) > 6 {
				return throttledNow(0)
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Terminate(ctx, strings.Split("abcdefgh", "")...).Err(); err != nil {
			t.Error(err)
		}
		want := []string{"0s terminate a,b,c,d,e,f,g,h", "1s terminate a,b,c,d,e", "1s terminate f,g,h"}
		if got := told.sent(); !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
}

func TestACallThatIsRefusedForOneInstanceIsMadeForTheOthers(t *testing.T) {
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
		told.whole = func(ids []string) error {
			if slices.Contains(ids, "c") {
				return fmt.Errorf("%w: c is protected", cloud.ErrRefused)
			}
			return nil
		}
		for _, r := range c.Features().Stopper.Stop(t.Context(), "a", "b", "c", "d", "e") {
			if (r.Err != nil) != (r.ID == "c") {
				t.Errorf("%s was answered %v", r.ID, r.Err)
			}
		}
		want := []string{"0s stop a,b,c,d,e", "0s stop a,b,c", "0s stop d,e", "0s stop a,b", "0s stop c"}
		if got := told.sent(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
}

func TestAnInstanceThatIsNotDescribedHidesNoOther(t *testing.T) {
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
		told.whole = func(ids []string) error {
			if slices.Contains(ids, "c") {
				return fmt.Errorf("%w: c is odd", cloud.ErrRefused)
			}
			return nil
		}
		ids := []string{"a", "b", "c", "d"}
		for n, d := range c.DescribeEach(t.Context(), ids...) {
			if refused := errors.Is(d.Err, cloud.ErrRefused); refused != (ids[n] == "c") || !refused && d.Instance.ID != ids[n] {
				t.Errorf("%s was answered %+v", ids[n], d)
			}
		}
		if all, err := c.Describe(t.Context(), ids...); !errors.Is(err, cloud.ErrRefused) {
			t.Errorf("all of them: %v, %v", all, err)
		}
	})
}

func TestACallerWhoseTimeIsOverIsAnsweredAtOnce(t *testing.T) {
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
		var ended time.Time
		told.answers = func(ctx context.Context, kind cloud.Call, id string) error {
			if kind == cloud.CallStop {
				return throttledNow(time.Minute)
			}
			<-ctx.Done()
			ended = time.Now()
			return ctx.Err()
		}
		// Two share a call, which goes on until the second has gone too.
		turn, err := c.Turn(t.Context(), cloud.CallTerminate, 1)
		if err != nil {
			t.Fatal(err)
		}
		turn.end(throttledNow(0))
		var all sync.WaitGroup
		for _, seconds := range []int{5, 7} {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
				defer cancel()
				err := c.Terminate(ctx, fmt.Sprint(seconds)).Err()
				if took := time.Since(told.began); !errors.Is(err, context.DeadlineExceeded) || took != time.Duration(seconds)*time.Second {
					t.Errorf("one that waits for %d s was answered %v after %v", seconds, err, took)
				}
			})
		}
		all.Wait()
		if got := ended.Sub(told.began); got != 7*time.Second || len(told.sent()) != 1 {
			t.Errorf("the call ended after %v, sent %q", got, told.sent())
		}
		// One that waits for its turn has a reason to tell.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Features().Stopper.Stop(ctx, "a").Err(); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cloud.ErrThrottled) {
			t.Errorf("one that was throttled is answered %v", err)
		}
		if _, err := c.Turn(ctx, cloud.CallLaunch, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a turn when there is no time left: %v", err)
		}
	})
}

func TestATurnThatIsCancelledCostsNothing(t *testing.T) {
	with(t, budget(cloud.CallLaunch, 1, 1), func(t *testing.T, c *Calls, told *told) {
		for range 3 {
			turn, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
			if err != nil {
				t.Fatal(err)
			}
			turn.Cancel()
		}
		if took := time.Since(told.began); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// As where throttling and answers that never come are of one fault.
func TestACallThatHangsAfterOneThatWasThrottledHoldsUpNoOtherForLong(t *testing.T) {
	with(t, budget(cloud.CallLaunch, 100, 100), func(t *testing.T, c *Calls, told *told) {
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

// The one for which the cloud fails may be any of them.
func TestACallThatTheCloudFailsIsMadeSmallerAndNotForEach(t *testing.T) {
	for bad, want := range map[string]int{"i-007": leastFailed, "all": 400} {
		with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
			told.whole = func(ids []string) error {
				if bad == "all" || slices.Contains(ids, bad) {
					return errors.New("InternalError")
				}
				return nil
			}
			var ids []string
			for n := range 400 {
				ids = append(ids, fmt.Sprintf("i-%03d", n))
			}
			failed := 0
			for _, d := range c.DescribeEach(t.Context(), ids...) {
				if d.Err != nil {
					failed++
				}
			}
			if n := len(told.sent()); failed != want || n > 2*400/leastFailed {
				t.Errorf("with %s: %d have no answer, want %d, after %d calls", bad, failed, want, n)
			}
		})
	}
}

func TestATurnThatIsSetAsideTakesNoPlaceAndWaitsForOneAgain(t *testing.T) {
	with(t, budget(cloud.CallLaunch, 3, 1), func(t *testing.T, c *Calls, told *told) {
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
		aside.Aside()
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
		if err := aside.Again(t.Context()); err != nil {
			t.Fatal(err)
		}
		if since := time.Since(told.began); since != 6*time.Second {
			t.Errorf("the one that was set aside goes on after %v, want 6s, when the other has its answer", since)
		}
		c.mu.Lock()
		if b := c.lines[cloud.CallLaunch].requests; b.tokens != b.Capacity {
			t.Errorf("%v requests are left of %v: it has paid twice", b.tokens, b.Capacity)
		}
		c.mu.Unlock()
		aside.Cancel()
		all.Wait()
		// It costs as little, and no more places are free than there are.
		for range 2 {
			turn, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
			if err != nil {
				t.Fatal(err)
			}
			turn.Aside()
			turn.Cancel()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
		if err != nil {
			t.Fatal(err)
		}
		late.Aside()
		var held []*Turn
		for range 2 {
			turn, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, turn)
		}
		_, unsent := errors.AsType[*UnsentError](late.Again(ctx))
		if !unsent {
			t.Error("a turn goes on while as many are under way as may be")
		}
		for _, turn := range held {
			turn.Cancel()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if l := c.lines[cloud.CallLaunch]; l.underWay != 0 || l.requests.tokens != l.requests.Capacity {
			t.Errorf("in the end %d are under way, and %v requests are left of %v", l.underWay, l.requests.tokens, l.requests.Capacity)
		}
	})
}

// Nothing is added to a budget before the first answer: who waits for that must not be before
// the one that will have it.
func TestATurnThatIsSetAsideGoesOnBeforeThoseThatLackABudget(t *testing.T) {
	with(t, budget(cloud.CallLaunch, 1, 1), func(t *testing.T, c *Calls, told *told) {
		aside, err := c.Turn(t.Context(), cloud.CallLaunch, 1)
		if err != nil {
			t.Fatal(err)
		}
		aside.Aside()
		var all sync.WaitGroup
		all.Go(func() {
			if err := c.Launch(t.Context(), cloud.LaunchRequest{Machines: make([]cloud.Machine, 2)}).Err(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := aside.Again(ctx); err != nil {
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
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
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

func TestWaitsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &waits{}
		c := New(Config{Cloud: &told{traits: budget(cloud.CallList, 1, 1)}, Random: one, Meter: w, Clock: clock.RealClock{}})
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

// tags is a cloud that tags, and has parts.
type tags struct{ *told }

func (c *tags) Features() cloud.Features { return cloud.Features{Tagger: c, Parts: c, Resolver: c} }

func (c *tags) Resolve(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	return cloud.Resolved{Image: "of " + s.Subnet}, c.each(ctx, cloud.CallResolve, s.Subnet).Err()
}

func (c *tags) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	ids := make([]string, len(taggings))
	for n, t := range taggings {
		ids[n] = t.ID + "=" + t.Tags["for"]
	}
	results := c.each(ctx, cloud.CallTag, ids...)
	for n := range results {
		results[n].ID = taggings[n].ID
	}
	return results
}

func (c *tags) ListParts(ctx context.Context, owner string) ([]cloud.Part, error) {
	return []cloud.Part{{ID: "p"}}, c.each(ctx, cloud.CallListParts, owner).Err()
}

func (c *tags) DeleteParts(ctx context.Context, ids ...string) cloud.Results {
	return c.each(ctx, cloud.CallDeleteParts, ids...)
}

func TestTagsAndPartsKeepToTheirBudgetsAndWhatIsThrottledIsSentAgain(t *testing.T) {
	traits := cloud.Traits{Budgets: map[cloud.Call]cloud.Budget{
		cloud.CallTag: {Requests: cloud.Bucket{Capacity: 10, Refill: 1}, Resources: cloud.Bucket{Capacity: 2, Refill: 1}},
	}}
	synctest.Test(t, func(t *testing.T) {
		cl := &tags{told: &told{traits: traits, began: time.Now()}}
		cl.answers = func(_ context.Context, kind cloud.Call, id string) error {
			switch {
			case kind == cloud.CallResolve && time.Since(cl.began) < 6*time.Second,
				id == "b=you" && time.Since(cl.began) == 0, id == "q" && time.Since(cl.began) < 5*time.Second:
				return throttledNow(0)
			case id == "r":
				return fmt.Errorf("%w: it is in use", cloud.ErrRefused)
			}
			return nil
		}
		f := New(Config{Cloud: cl, Random: one, Clock: clock.RealClock{}}).Features()
		if err := f.Tagger.Tag(t.Context(),
			cloud.Tagging{ID: "a", Tags: map[string]string{"for": "me"}},
			cloud.Tagging{ID: "b", Tags: map[string]string{"for": "you"}},
			cloud.Tagging{ID: "c", Tags: map[string]string{"for": "all"}},
		).Err(); err != nil {
			t.Error(err)
		}
		time.Sleep(4*time.Second - time.Since(cl.began))
		for _, r := range f.Parts.DeleteParts(t.Context(), "p", "q", "r") {
			if (r.Err != nil) != (r.ID == "r") {
				t.Errorf("part %s: %v", r.ID, r.Err)
			}
		}
		if got, err := f.Resolver.Resolve(t.Context(), cloud.LaunchSpec{Subnet: "s"}); err != nil || got.Image != "of s" ||
			time.Since(cl.began) < 6*time.Second {
			t.Errorf("a launch is resolved to %+v, %v", got, err)
		}
		if list, err := f.Parts.ListParts(t.Context(), "me"); err != nil || len(list) != 1 {
			t.Errorf("parts %v, %v", list, err)
		}
		want := []string{
			"0s tag a=me,b=you", "1s tag c=all,b=you",
			"4s deleteParts p,q,r", "5s deleteParts q", "5s resolve s", "6s resolve s", "6s listParts me",
		}
		if got := cl.sent(); !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
}

func TestWhatDestroysHasABudgetOnEveryCloud(t *testing.T) {
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
		for range int(hasty.Capacity) + 20 { // as one that asks again and again
			if err := c.Features().Stopper.Stop(t.Context(), "a").Err(); err != nil {
				t.Fatal(err)
			}
			if err := c.Features().Stopper.Start(t.Context(), "a").Err(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(told.began); took != 2*time.Second {
			t.Errorf("so many stops took %v, want 2 s for the last 20", took)
		}
	})
}

func TestWhatIsAboutAllInstancesIsNotHalved(t *testing.T) {
	for _, refusal := range []error{
		errors.New("timeout"),
		cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, nil),
		cloud.No(cloud.ErrRefused, cloud.Scope{Account: true}, nil),
		cloud.No(cloud.ErrRefused, cloud.Scope{Zone: "z"}, nil),
	} {
		if refusedAsOne([]answer{{err: refusal}, {err: refusal}}) {
			t.Errorf("%v is taken for the fault of one instance", refusal)
		}
	}
	refusal := cloud.No(cloud.ErrNotFound, cloud.Scope{}, nil)
	if !refusedAsOne([]answer{{err: refusal}, {err: refusal}}) || refusedAsOne([]answer{{err: refusal}, {}}) {
		t.Error("a refusal of all that names no more may be about one of them, one of some is about that")
	}
	right := cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, nil)
	if !refusedAsOne([]answer{{err: right}, {err: right}}) {
		t.Error("a right that is missing to one of them is taken for that of all")
	}
	// As a driver says of which instance it is the answer.
	named := func(id string, err error) answer { return answer{err: fmt.Errorf("terminate %s: %w", id, err)} }
	other := cloud.No(cloud.ErrNotFound, cloud.Scope{}, errors.New("another"))
	first, second := named("i-1", refusal), named("i-2", refusal)
	if !refusedAsOne([]answer{first, second}) || refusedAsOne([]answer{first, named("i-2", other)}) {
		t.Error("it is one refusal, whatever name is before it, or it is two")
	}
}

func TestAStopIsTakenBackUntilItIsSent(t *testing.T) {
	with(t, cloud.Traits{}, func(t *testing.T, c *Calls, told *told) {
		told.answers = func(_ context.Context, _ cloud.Call, id string) error {
			switch time.Sleep(time.Second); id {
			case "throttled", "other":
				return &cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: time.Hour, Err: errors.New("later")}
			}
			return nil
		}
		var all sync.WaitGroup
		stop := func(id string, takenBack bool) {
			all.Go(func() {
				err := c.Features().Stopper.Stop(t.Context(), id).Err()
				if errors.Is(err, errTakenBack) != takenBack || err != nil != takenBack {
					t.Errorf("the stop of %s is answered %v", id, err)
				}
			})
		}
		stop("sent", false)
		synctest.Wait()
		time.Sleep(time.Millisecond)
		c.TakeBackStop("sent") // it is under way
		all.Wait()
		stop("throttled", true)
		stop("other", true)
		time.Sleep(time.Minute)
		before := len(told.sent())
		for _, id := range []string{"unknown", "throttled", "other"} {
			c.TakeBackStop(id)
		}
		all.Wait()
		time.Sleep(2 * time.Hour)
		if sent := told.sent(); len(sent) != before {
			t.Errorf("sent %q, of which %q after all were taken back", sent, sent[before:])
		}
	})
}

// looker is a cloud that is asked again and again what it takes back.
type looker struct{ *told }

func (l looker) Features() cloud.Features { return cloud.Features{Interrupter: l} }

func (l looker) Interruptions(ctx context.Context, to cloud.Listener) error {
	for range 3 {
		err := to.Look(ctx, func(ctx context.Context) error { return l.each(ctx, cloud.CallInterruptions, "").Err() })
		if err != nil {
			return err
		}
	}
	to.Notify(cloud.Interruption{InstanceID: "i-a"})
	return nil
}

func TestALookForInterruptionsWaitsInALineOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttled := 1
		l := looker{&told{
			began:  time.Now(),
			traits: budget(cloud.CallInterruptions, 2, 1),
			answers: func(context.Context, cloud.Call, string) error {
				if throttled--; throttled >= 0 {
					return throttledNow(0)
				}
				return nil
			},
		}}
		c := New(Config{Cloud: l, Random: one, Clock: clock.RealClock{}})
		noticed := ""
		err := c.Features().Interrupter.Interruptions(t.Context(), cloud.Listener{
			Notify: func(i cloud.Interruption) { noticed += i.InstanceID },
		})
		if err != nil || noticed != "i-a" {
			t.Errorf("told of %q, then %v", noticed, err)
		}
		// The first is throttled, and the cloud's bucket is then empty: one a second goes.
		const kind = " interruptions "
		if want := []string{"0s" + kind, "1s" + kind, "2s" + kind, "3s" + kind}; !slices.Equal(l.sent(), want) {
			t.Errorf("sent %q, want %q", l.sent(), want)
		}
	})
}

// lender is a cloud with registries.
type lender struct{ *told }

func (l lender) Features() cloud.Features { return cloud.Features{Registries: l} }

func (l lender) Images() []string { return []string{"*.example.com"} }

func (l lender) PullCredentials(ctx context.Context, registry string, repositories ...string) (cloud.PullCredentials, error) {
	what := registry + "/" + strings.Join(repositories, "+")
	return cloud.NewPullCredentials("u", "of "+what, time.Hour), l.each(ctx, cloud.CallPullCredentials, what).Err()
}

func TestPullCredentialsWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttled := 1
		l := lender{&told{
			began:  time.Now(),
			traits: budget(cloud.CallPullCredentials, 2, 1),
			answers: func(context.Context, cloud.Call, string) error {
				if throttled--; throttled >= 0 {
					return throttledNow(0)
				}
				return nil
			},
		}}
		registries := New(Config{Cloud: l, Random: one, Clock: clock.RealClock{}}).Features().Registries
		for range 2 {
			got, err := registries.PullCredentials(t.Context(), "r.example.com", "a", "b")
			if err != nil || got.Reveal() != "of r.example.com/a+b" || len(registries.Images()) != 1 {
				t.Errorf("%v, %v, for images %v", got, err, registries.Images())
			}
		}
		// The first is throttled, and the cloud's bucket is then empty: one a second goes.
		const call = " pullCredentials r.example.com/a+b"
		if want := []string{"0s" + call, "1s" + call, "2s" + call}; !slices.Equal(l.sent(), want) {
			t.Errorf("sent %q, want %q", l.sent(), want)
		}
	})
}

// keeper is a cloud that keeps consoles.
type keeper struct {
	*told
	text []byte
}

func (k keeper) Features() cloud.Features { return cloud.Features{Console: k} }

func (k keeper) Console(ctx context.Context, id string) ([]byte, error) {
	return k.text, k.each(ctx, cloud.CallConsole, id).Err()
}

func TestAConsoleWaitsForItsTurnAndIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttled := 1
		k := keeper{text: []byte(strings.Repeat("x", mostConsole) + "end"), told: &told{
			began: time.Now(),
			answers: func(context.Context, cloud.Call, string) error {
				if throttled--; throttled >= 0 {
					return cloud.ErrThrottled
				}
				return nil
			},
		}}
		c := New(Config{Cloud: k, Clock: clock.RealClock{}})
		text, err := c.Features().Console.Console(t.Context(), "i-1")
		if err != nil || len(text) != mostConsole || !strings.HasSuffix(string(text), "xend") {
			t.Errorf("%d bytes, %v", len(text), err)
		}
		if len(k.calls) != 2 {
			t.Errorf("sent %q, want a second call after one that was throttled", k.calls)
		}
	})
}
