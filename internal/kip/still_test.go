package kip

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/store/storetest"
	"github.com/elotl/kip/internal/watchdog"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestALeaderThatStandsStillIsNotHealthyAndIsReplaced(t *testing.T) {
	etcd := storetest.Serve(t, nil)
	connect := func() *store.Store {
		s, err := store.OpenExternal(t.Context(), store.External{Endpoints: []string{etcd.Endpoint}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s.Within("kip/")
	}
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	start := func(st *store.Store, lead func(k *process) task) (*process, <-chan error) {
		k := &process{Options: Options{Log: silent}, clock: clk, watchdog: watchdog.New(clk, silent), role: &role{}}
		running.Go(func() {
			if err := k.watchdog.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		ended := make(chan error, 1)
		running.Go(func() { ended <- k.takeTurns(ctx, st, lead(k)) })
		return k, ended
	}

	var stuck sync.Mutex
	stuck.Lock()
	leads, late := make(chan struct{}), make(chan error, 1)
	first, ended := start(connect(), func(k *process) task {
		return func(ctx context.Context, st *store.Store) error {
			k.watchdog.Track(ctx, "the stuck loop", func(context.Context) {
				close(leads)
				stuck.Lock()
				defer stuck.Unlock()
			})
			_, err := st.Put(context.WithoutCancel(ctx), "late", "write", 0)
			late <- err
			return nil
		}
	})
	<-leads
	healthz := func(k *process) (int, string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", http.NoBody)
		metrics.Handler(http.NotFoundHandler(), k.alive(), nil).ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	if code, text := healthz(first); code != http.StatusOK {
		t.Fatalf("one that has just begun: %d %s", code, text)
	}
	replaced := make(chan struct{})
	second, _ := start(connect(), func(*process) task {
		return func(ctx context.Context, _ *store.Store) error {
			close(replaced)
			<-ctx.Done()
			return nil
		}
	})
	for waits := true; waits; {
		select {
		case <-replaced:
			waits = false
		case <-time.After(time.Millisecond): // for etcd, which has its own time
			clk.Step(time.Second)
		}
	}
	if code, text := healthz(first); code != http.StatusInternalServerError || !strings.Contains(text, "the stuck loop") {
		t.Errorf("one that stands still: %d %s", code, text)
	}
	if code, text := healthz(second); code != http.StatusOK {
		t.Errorf("the one that has followed: %d %s", code, text)
	}
	stuck.Unlock()
	if err := <-late; !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("a write of the one that stood still: %v", err)
	}
	if err := <-ended; !errors.Is(err, errStill) {
		t.Errorf("its work ended with %v", err)
	}
}
