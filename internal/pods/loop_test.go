package pods

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"
)

func TestAPodIsReconciledAgainAsItsStepSays(t *testing.T) {
	pod := cache.ObjectName{Namespace: "ns", Name: "a"}
	for name, tc := range map[string]struct {
		again   time.Duration
		err     error
		ended   bool
		retries int
	}{
		"it is done":       {},
		"it waits":         {again: time.Hour},
		"it failed":        {err: errors.New("no answer"), retries: 3},
		"Kip ends":         {err: context.Canceled, ended: true, retries: 2},
		"it waits, failed": {again: time.Hour, err: errors.New("no answer"), retries: 3},
	} {
		l := newLoop(Config{Random: func() float64 { return 1 }, Log: slog.New(slog.DiscardHandler)})
		l.queue.AddRateLimited(pod)
		l.queue.AddRateLimited(pod)
		ctx, cancel := context.WithCancel(t.Context())
		if tc.ended {
			cancel()
		}
		l.process(ctx, pod, func(_ context.Context, got cache.ObjectName) (time.Duration, error) {
			if got != pod {
				t.Errorf("%s: %s is reconciled", name, got)
			}
			return tc.again, tc.err
		})
		if n := l.queue.NumRequeues(pod); n != tc.retries {
			t.Errorf("%s: it counts %d failures in a row, want %d", name, n, tc.retries)
		}
		cancel()
		l.stop()
	}
}

func TestWorkersReconcileUntilTheLoopStops(t *testing.T) {
	l := newLoop(Config{Random: func() float64 { return 1 }, Log: slog.New(slog.DiscardHandler)})
	done := make(chan cache.ObjectName)
	l.start(t.Context(), func(_ context.Context, pod cache.ObjectName) (time.Duration, error) {
		done <- pod
		return 0, nil
	})
	for _, name := range []string{"a", "b"} {
		pod := cache.ObjectName{Namespace: "ns", Name: name}
		l.wake(pod)
		if got := <-done; got != pod {
			t.Errorf("%s is reconciled, want %s", got, pod)
		}
	}
	l.stop()
}
