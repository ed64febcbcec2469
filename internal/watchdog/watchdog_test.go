package watchdog

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"k8s.io/utils/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newWatchdog(log io.Writer) *Watchdog {
	return New(clock.RealClock{}, slog.New(slog.NewTextHandler(log, nil)))
}

// looks looks as often as Run does in twice the limit.
func looks(w *Watchdog) {
	for range 2 * looksMost {
		w.look()
	}
}

// begin takes a task in which work runs, and returns once work says that it is where it stays.
func begin(w *Watchdog, name string, work func(_ context.Context, stays func())) (ended <-chan struct{}) {
	begun, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		w.Track(context.Background(), name, func(ctx context.Context) { work(ctx, func() { close(begun) }) })
	}()
	<-begun
	return done
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestOnlyWhatStandsStillWithoutAWaitIsNamed(t *testing.T) {
	var mu sync.Mutex
	for name, tc := range map[string]struct {
		// work goes on until end is closed or mu can be taken.
		work  func(ctx context.Context, stays func(), end <-chan struct{})
		still bool
	}{
		"blocks on a mutex": {func(_ context.Context, stays func(), _ <-chan struct{}) { defer mu.Unlock(); stays(); mu.Lock() }, true},
		"computes for ever": {func(_ context.Context, stays func(), end <-chan struct{}) {
			stays()
			for !closed(end) {
				continue
			}
		}, true},
		"waits for the store": {func(ctx context.Context, stays func(), end <-chan struct{}) {
			defer Wait(ctx, Store)()
			stays()
			<-end
		}, false},
		"waits for two, and one of them is there": {func(ctx context.Context, stays func(), end <-chan struct{}) {
			defer Wait(ctx, Cell)()
			Wait(ctx, Store)()
			stays()
			<-end
		}, false},
		"has waited": {func(ctx context.Context, stays func(), end <-chan struct{}) { Wait(ctx, Cloud)(); stays(); <-end }, true},
		"has another's wait": {func(ctx context.Context, stays func(), end <-chan struct{}) {
			defer Wait(Alone(ctx), Cloud)()
			stays()
			<-end
		}, true},
	} {
		w, end := newWatchdog(io.Discard), make(chan struct{})
		mu.Lock()
		ended := begin(w, "the loop", func(ctx context.Context, stays func()) { tc.work(ctx, stays, end) })
		other := begin(w, "another", func(ctx context.Context, stays func()) { defer Wait(ctx, Time)(); stays(); <-end })
		for range looksMost {
			w.look()
		}
		if err := w.Err(); err != nil {
			t.Errorf("one that %s, before the limit: %v", name, err)
		}
		looks(w)
		if err := w.Err(); (err != nil) != tc.still || closed(w.Stalled()) != tc.still {
			t.Errorf("one that %s: %v", name, err)
		} else if tc.still && (!strings.Contains(err.Error(), "the loop") || strings.Contains(err.Error(), "another")) {
			t.Errorf("one that %s: %v does not name it alone", name, err)
		}
		close(end)
		mu.Unlock()
		<-ended
		<-other
		w.look()
		if err := w.Err(); err != nil {
			t.Errorf("one that %s, after its end: %v", name, err)
		}
	}
}

func TestALoopThatMovesIsNotStill(t *testing.T) {
	w, moves, end := newWatchdog(io.Discard), make(chan struct{}), make(chan struct{})
	ended := begin(w, "the loop", func(ctx context.Context, stays func()) {
		stays()
		for range moves {
			Wait(ctx, Cloud)()
			end <- struct{}{}
		}
	})
	for range 4 * looksMost {
		moves <- struct{}{}
		<-end
		w.look()
		w.look()
	}
	if err := w.Err(); err != nil {
		t.Error(err)
	}
	close(moves)
	<-ended
}

func TestRunLooksAndALongWaitIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		w := newWatchdog(&log)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		end := make(chan struct{})
		waiting := begin(w, "the patient", func(ctx context.Context, stays func()) { defer Wait(ctx, APIServer)(); stays(); <-end })
		standing := begin(w, "the lame", func(_ context.Context, stays func()) { stays(); <-end })
		<-w.Stalled()
		synctest.Wait()
		if text := log.String(); !strings.Contains(text, `"the API server"`) || !strings.Contains(text, `loops="the lame"`) {
			t.Errorf("the log says %s", text)
		}
		close(end)
		<-waiting
		<-standing
		cancel()
		running.Wait()
	})
}

func TestALockThatIsHeldIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog(io.Discard)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		lock := make(chanLock, 1)
		running.Go(func() { w.TrackLock(ctx, "the lock", lock) })
		running.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		<-clock.RealClock{}.After(5 * probeEvery)
		if err := w.Err(); err != nil {
			t.Errorf("a lock that nobody holds: %v", err)
		}
		lock.Lock()
		<-w.Stalled()
		synctest.Wait()
		if err := w.Err(); err == nil || !strings.Contains(err.Error(), "the lock") {
			t.Errorf("a lock that is held: %v", err)
		}
		lock.Unlock()
		cancel()
		running.Wait()
	})
}

// chanLock is a lock on which a bubble knows that one waits.
type chanLock chan struct{}

func (l chanLock) Lock()   { l <- struct{}{} }
func (l chanLock) Unlock() { <-l }

func TestNothingIsWatchedWithoutAPulse(t *testing.T) {
	var w *Watchdog
	called := false
	w.Track(t.Context(), "a loop", func(ctx context.Context) {
		defer Wait(ctx, Store)()
		called = true
	})
	w.TrackLock(t.Context(), "a lock", &sync.Mutex{})
	if !called {
		t.Error("the task was not taken")
	}
}

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// reads is the body of an answer.
type reads func() error

func (r reads) Read([]byte) (int, error) { return 0, r() }
func (reads) Close() error               { return nil }

func TestARequestAndTheBodyOfItsAnswerAreWaits(t *testing.T) {
	w := newWatchdog(io.Discard)
	broken := errors.New("broken")
	healthy := func(what string) {
		looks(w)
		if err := w.Err(); err != nil {
			t.Errorf("while it waits for %s: %v", what, err)
		}
	}
	rt := Transport(answers(func(*http.Request) (*http.Response, error) {
		healthy("the answer")
		return &http.Response{StatusCode: http.StatusOK, Body: reads(func() error { healthy("the body"); return broken })}, nil
	}), APIServer)
	w.Track(t.Context(), "a loop", func(ctx context.Context) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := rt.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(answer.Body); !errors.Is(err, broken) {
			t.Errorf("the body ended with %v", err)
		}
		looks(w)
		if w.Err() == nil {
			t.Error("the wait has not ended with the body")
		}
	})
}
