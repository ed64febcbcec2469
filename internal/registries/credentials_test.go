package registries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

// lender is a cloud that lends what it is told to, and notes for what.
type lender struct {
	mu       sync.Mutex
	asked    []string
	most, at int           // calls under way at the same time
	takes    time.Duration // of a call
	hangs    string        // begins the names of repositories whose call has no answer
	lifetime time.Duration
	err      error
}

func (l *lender) Images() []string { return nil }

func (l *lender) PullCredentials(ctx context.Context, registry string, repositories ...string) (cloud.PullCredentials, error) {
	what := registry + ": " + strings.Join(repositories, ",")
	l.mu.Lock()
	l.asked = append(l.asked, what)
	n, err := len(l.asked), l.err
	l.at++
	l.most = max(l.most, l.at)
	l.mu.Unlock()
	takes := l.takes
	if l.hangs != "" && strings.HasPrefix(repositories[0], l.hangs) {
		takes = time.Hour
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at--
	return cloud.NewPullCredentials("u", fmt.Sprintf("secret-%d", n), l.lifetime), err
}

func (l *lender) fails(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *lender) calls() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.asked)
}

// with runs f with credentials of a lender, in virtual time.
func with(t *testing.T, l *lender, f func(t *testing.T, c *Credentials)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := New(Config{
			Cloud: l,
			Clock: clock.RealClock{},
			Log:   slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		f(t, c)
		c.Close()
		if strings.Contains(log.String(), "secret-") {
			t.Errorf("a password is in the log: %s", log.String())
		}
	})
}

const registry = "r.example.com"

func must(t *testing.T, c *Credentials, repository string, named ...string) agentapi.ImageCredentials {
	t.Helper()
	got, err := c.Get(t.Context(), "cell", registry, repository, named)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestASetOfRepositoriesIsAskedForOnceTillShortlyBeforeTheEnd(t *testing.T) {
	l := &lender{lifetime: time.Hour, takes: time.Second}
	with(t, l, func(t *testing.T, c *Credentials) {
		first := must(t, c, "a", "b", "a")
		if first.Password != "secret-1" || first.KeepFor != time.Hour-margin-time.Second {
			t.Errorf("%q for %v", first.Password, first.KeepFor)
		}
		for range 1000 { // in another order, and for another of the same set
			if got := must(t, c, "b", "a"); got != first {
				t.Fatalf("%q for %v", got.Password, got.KeepFor)
			}
		}
		if want := []string{"r.example.com: a,b"}; !slices.Equal(l.calls(), want) {
			t.Fatalf("asked for %q, want %q", l.calls(), want)
		}
		time.Sleep(first.KeepFor - time.Nanosecond)
		if got := must(t, c, "a", "b"); got.Password != "secret-1" || got.KeepFor != 1 {
			t.Errorf("%q for %v", got.Password, got.KeepFor)
		}
		time.Sleep(time.Nanosecond)
		if got := must(t, c, "a", "b"); got.Password != "secret-2" {
			t.Errorf("%q, want new ones", got.Password)
		}
		if got := must(t, c, "a"); got.Password != "secret-3" {
			t.Errorf("%q of a larger set is given to who names less", got.Password)
		}
	})
}

func TestThoseWhoAskTogetherShareOneCallAlsoIfTheFirstIsGone(t *testing.T) {
	l := &lender{lifetime: time.Hour, takes: 5 * time.Second}
	with(t, l, func(t *testing.T, c *Credentials) {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if _, err := c.Get(ctx, "cell", registry, "a", nil); !errors.Is(err, context.Canceled) {
					t.Errorf("one who is gone is answered %v", err)
				}
			})
		}
		time.Sleep(time.Second)
		cancel()
		all.Wait()
		if got := must(t, c, "a"); got.Password != "secret-1" || len(l.calls()) != 1 {
			t.Errorf("%q after %q", got.Password, l.calls())
		}
	})
}

func TestAFailureIsRememberedForAWhile(t *testing.T) {
	for _, one := range []struct {
		err  error
		kept time.Duration
	}{
		{cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("no role")), refusedFor},
		{cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, errors.New("no right")), refusedFor},
		{errors.New("lost"), failedFor},
	} {
		l := &lender{lifetime: time.Hour, err: one.err}
		with(t, l, func(t *testing.T, c *Credentials) {
			for range 1000 {
				if _, err := c.Get(t.Context(), "cell", registry, "a", nil); !errors.Is(err, one.err) {
					t.Fatalf("%v, want %v", err, one.err)
				}
			}
			if len(l.calls()) != 1 {
				t.Errorf("%v: %d calls", one.err, len(l.calls()))
			}
			l.fails(nil)
			time.Sleep(one.kept - 1)
			if _, err := c.Get(t.Context(), "cell", registry, "a", nil); err == nil {
				t.Errorf("%v is forgotten too early", one.err)
			}
			time.Sleep(time.Nanosecond)
			must(t, c, "a")
		})
	}
}

func TestACallThatHangsIsBounded(t *testing.T) {
	l := &lender{lifetime: time.Hour, takes: time.Hour}
	with(t, l, func(t *testing.T, c *Credentials) {
		began := time.Now()
		_, err := c.Get(t.Context(), "cell", registry, "a", nil)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != askTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestCallsAtTheSameTimeAreBounded(t *testing.T) {
	l := &lender{lifetime: time.Hour, takes: time.Second}
	with(t, l, func(t *testing.T, c *Credentials) {
		var all sync.WaitGroup
		for n := range 3 * mostAsked {
			all.Go(func() {
				if _, err := c.Get(t.Context(), fmt.Sprint("cell-", n), registry, fmt.Sprintf("r%d", n), nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if l.most != mostAsked || len(l.calls()) != 3*mostAsked {
			t.Errorf("%d of %d calls at the same time, want %d", l.most, len(l.calls()), mostAsked)
		}
	})
}

func TestOneWhoseCallsHangLeavesTheTurnsOfOthersAlone(t *testing.T) {
	l := &lender{lifetime: time.Hour, takes: time.Second, hangs: "dropped"}
	with(t, l, func(t *testing.T, c *Credentials) {
		var all sync.WaitGroup
		ask := func(asker, repository string, want error, within time.Duration) {
			all.Go(func() {
				began := time.Now()
				_, err := c.Get(t.Context(), asker, registry, repository, nil)
				if !errors.Is(err, want) || time.Since(began) > within {
					t.Errorf("%s asks for %s: %v after %v, want %v within %v", asker, repository, err, time.Since(began), want, within)
				}
			})
		}
		for n := range 2 * mostAsked {
			ask("hostile", fmt.Sprintf("dropped%d", n), context.DeadlineExceeded, askTimeout)
		}
		synctest.Wait()
		if n := len(l.calls()); n != mostOfOne {
			t.Errorf("%d calls for one, want %d", n, mostOfOne)
		}
		ask("hostile", "shared", nil, time.Second) // which waits, till another one asks for it, too
		synctest.Wait()
		ask("other", "shared", nil, time.Second)
		ask("other", "own", nil, time.Second)
		ask("third", "third", nil, time.Second)
		time.Sleep(askTimeout / 2)
		if n := len(l.calls()); n != mostOfOne+3 {
			t.Errorf("%d calls, want %d: %q", n, mostOfOne+3, l.calls())
		}
		all.Wait()
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.turns) > 0 {
			t.Errorf("the turns of %d are kept when nothing is asked", len(c.turns))
		}
	})
}

// However many askers have calls that hang, one whose call does not is served in its time.
func TestManyWhoseCallsHangLeaveATurnToOneWhoseDoesNot(t *testing.T) {
	for _, hostile := range []int{mostAsked / mostOfOne, mostAsked, 3 * mostAsked} {
		l := &lender{lifetime: time.Hour, takes: time.Second, hangs: "dropped"}
		with(t, l, func(t *testing.T, c *Credentials) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			var all sync.WaitGroup
			for n := range hostile {
				for m := range 2 * mostOfOne {
					all.Go(func() { // it asks again and again, for another one each time
						for k := 0; ctx.Err() == nil; k++ {
							_, _ = c.Get(ctx, fmt.Sprint("hostile-", n), registry, fmt.Sprintf("dropped%d/%d/%d", n, m, k), nil)
						}
					})
				}
			}
			var longest time.Duration
			for n := range 20 {
				time.Sleep(1700 * time.Millisecond)
				began := time.Now()
				if _, err := c.Get(ctx, "honest", registry, fmt.Sprint("own", n), nil); err != nil {
					t.Errorf("%d hostile cells: the call of another: %v after %v", hostile, err, time.Since(began))
				}
				longest = max(longest, time.Since(began))
			}
			// Who waited before it comes before it: each of them for as long as patience.
			if most := time.Duration(hostile/mostAsked+1)*patience + 2*time.Second; longest > most {
				t.Errorf("%d hostile cells: the call of another took up to %v, want at most %v", hostile, longest, most)
			}
			end()
			all.Wait()
			time.Sleep(2 * askTimeout)
			synctest.Wait()
			if l.most > mostAsked {
				t.Errorf("%d calls at the same time, want at most %d", l.most, mostAsked)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.turns)+len(c.under)+len(c.queue) > 0 {
				t.Errorf("%d turns, %d calls and %d who wait are kept when nothing is asked", len(c.turns), len(c.under), len(c.queue))
			}
		})
	}
}

func TestACallIsCutOffForWhoHasFewerAndSaysSo(t *testing.T) {
	l := &lender{lifetime: time.Hour, takes: time.Second, hangs: "dropped"}
	with(t, l, func(t *testing.T, c *Credentials) {
		var all sync.WaitGroup
		cut := make(chan error, mostAsked)
		for n := range mostAsked {
			all.Go(func() {
				began := time.Now()
				_, err := c.Get(t.Context(), fmt.Sprint("slow-", n/mostOfOne), registry, fmt.Sprint("dropped", n), nil)
				if errors.Is(err, errCut) {
					cut <- err
				} else if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != askTimeout {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		}
		time.Sleep(patience - time.Second)
		began := time.Now()
		if _, err := c.Get(t.Context(), "honest", registry, "own", nil); err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v, want no error after 2 s", err, time.Since(began))
		}
		if must(t, c, "own"); len(cut) != 1 { // who asks when all is free again takes nobody's
			t.Errorf("%d calls were cut off, want 1", len(cut))
		}
		all.Wait()
	})
}

func TestRepositoriesBeyondWhatOneCallTakesHaveAnother(t *testing.T) {
	l := &lender{lifetime: time.Hour}
	with(t, l, func(t *testing.T, c *Credentials) {
		names := []string{"g", "f", "e", "d", "c", "b", "a"}
		for _, one := range names {
			must(t, c, one, names...)
		}
		if want := []string{"r.example.com: f,g", "r.example.com: a,b,c,d,e"}; !slices.Equal(l.calls(), want) {
			t.Errorf("asked for %q, want %q", l.calls(), want)
		}
	})
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	l := &lender{lifetime: time.Hour}
	with(t, l, func(t *testing.T, c *Credentials) {
		for n := range mostKept + 10 {
			must(t, c, fmt.Sprintf("r%d", n))
			time.Sleep(time.Millisecond)
		}
		if len(c.kept) != mostKept {
			t.Errorf("%d are kept, want %d", len(c.kept), mostKept)
		}
		must(t, c, fmt.Sprintf("r%d", mostKept+9))
		if n := len(l.calls()); n != mostKept+10 {
			t.Errorf("%d calls: the last one is forgotten, not the first", n)
		}
		must(t, c, "r0")
		if n := len(l.calls()); n != mostKept+11 {
			t.Errorf("%d calls: the first one is not forgotten", n)
		}
		time.Sleep(time.Hour)
		must(t, c, "r1")
		if len(c.kept) != 1 {
			t.Errorf("%d are kept after all have ended", len(c.kept))
		}
	})
}

func TestOneWhoAsksForMuchMakesNobodyElsesForgotten(t *testing.T) {
	l := &lender{lifetime: time.Hour}
	with(t, l, func(t *testing.T, c *Credentials) {
		if _, err := c.Get(t.Context(), "other", registry, "app", nil); err != nil {
			t.Fatal(err)
		}
		for n := range mostKept + 10 {
			time.Sleep(time.Millisecond)
			must(t, c, fmt.Sprintf("r%d", n))
		}
		before := len(l.calls())
		if _, err := c.Get(t.Context(), "other", registry, "app", nil); err != nil || len(l.calls()) != before {
			t.Errorf("another's is asked for anew (%v)", err)
		}
	})
}

func TestFailuresFillNoLog(t *testing.T) {
	l := &lender{lifetime: time.Hour, err: errors.New("no such account")}
	var log bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Cloud: l, Clock: clock.RealClock{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for n := range 600 {
			if _, err := c.Get(t.Context(), "cell", registry, fmt.Sprint("made-up-", n), nil); err == nil {
				t.Fatal("it is lent")
			}
			time.Sleep(time.Second)
		}
		c.Close()
	})
	const most = failuresAtOnce + int(10*time.Minute/failuresEvery)
	if lines := strings.Count(log.String(), "\n"); lines > most || lines < most-2 || !strings.Contains(log.String(), " untold=9 ") {
		t.Errorf("600 failures in ten minutes are %d lines, want %d that say how many there were:\n%s", lines, most, log.String())
	}
}

func TestCredentialsOfAShortLifeAreKeptForAMinuteAtMost(t *testing.T) {
	l := &lender{lifetime: 5 * time.Minute}
	with(t, l, func(t *testing.T, c *Credentials) {
		if got := must(t, c, "a"); got.KeepFor != leastKept {
			t.Errorf("kept for %v", got.KeepFor)
		}
	})
	l = &lender{}
	with(t, l, func(t *testing.T, c *Credentials) {
		if _, err := c.Get(t.Context(), "cell", registry, "a", nil); err == nil {
			t.Error("credentials that have ended are given away")
		}
	})
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	l := &lender{lifetime: time.Hour, takes: time.Hour}
	with(t, l, func(t *testing.T, c *Credentials) {
		ended := make(chan error)
		go func() {
			_, err := c.Get(context.Background(), "cell", registry, "a", nil)
			ended <- err
		}()
		synctest.Wait()
		began := time.Now()
		c.Close()
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := c.Get(t.Context(), "cell", registry, "a", nil); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}
