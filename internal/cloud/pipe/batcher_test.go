package pipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

func TestWhatWaitsForTheSameBudgetGoesInOneCall(t *testing.T) {
	with(t, budget(cloud.CallTerminate, 1, 0.5), func(t *testing.T, c *Pipe, told *told) {
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

func TestWhatIsThrottledOfACallIsSentAgainAndTheRestIsAnswered(t *testing.T) {
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
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
	capabilities := cloud.Capabilities{Budgets: map[cloud.Call]cloud.Budget{
		cloud.CallTerminate: {Resources: cloud.Bucket{Capacity: 100, Refill: 20}},
	}}
	with(t, capabilities, func(t *testing.T, c *Pipe, told *told) {
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
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
		told.whole = func(ids []string) error {
			if slices.Contains(ids, "c") {
				return fmt.Errorf("%w: c is protected", cloud.ErrRefused)
			}
			return nil
		}
		for _, r := range c.Optional().Stopper.Stop(t.Context(), "a", "b", "c", "d", "e") {
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
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
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
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
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
		if err := c.Optional().Stopper.Stop(ctx, "a").Err(); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cloud.ErrThrottled) {
			t.Errorf("one that was throttled is answered %v", err)
		}
		if _, err := c.Turn(ctx, cloud.CallLaunch, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a turn when there is no time left: %v", err)
		}
	})
}

// The one for which the cloud fails may be any of them.
func TestACallThatTheCloudFailsIsMadeSmallerAndNotForEach(t *testing.T) {
	for bad, want := range map[string]int{"i-007": leastFailed, "all": 400} {
		with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
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

func TestWhatIsAboutAllInstancesIsNotHalved(t *testing.T) {
	for _, refusal := range []error{
		errors.New("timeout"),
		cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, nil),
		cloud.No(cloud.ErrRefused, cloud.Scope{Account: true}, nil),
		cloud.No(cloud.ErrRefused, cloud.Scope{Zone: "z"}, nil),
	} {
		if refusedAsOne([]Answer{{Err: refusal}, {Err: refusal}}) {
			t.Errorf("%v is taken for the fault of one instance", refusal)
		}
	}
	refusal := cloud.No(cloud.ErrNotFound, cloud.Scope{}, nil)
	if !refusedAsOne([]Answer{{Err: refusal}, {Err: refusal}}) || refusedAsOne([]Answer{{Err: refusal}, {}}) {
		t.Error("a refusal of all that names no more may be about one of them, one of some is about that")
	}
	right := cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, nil)
	if !refusedAsOne([]Answer{{Err: right}, {Err: right}}) {
		t.Error("a right that is missing to one of them is taken for that of all")
	}
	// As a driver says of which instance it is the answer.
	named := func(id string, err error) Answer { return Answer{Err: fmt.Errorf("terminate %s: %w", id, err)} }
	other := cloud.No(cloud.ErrNotFound, cloud.Scope{}, errors.New("another"))
	first, second := named("i-1", refusal), named("i-2", refusal)
	if !refusedAsOne([]Answer{first, second}) || refusedAsOne([]Answer{first, named("i-2", other)}) {
		t.Error("it is one refusal, whatever name is before it, or it is two")
	}
}

func TestAStopIsTakenBackUntilItIsSent(t *testing.T) {
	with(t, cloud.Capabilities{}, func(t *testing.T, c *Pipe, told *told) {
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
				err := c.Optional().Stopper.Stop(t.Context(), id).Err()
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
