package kip

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
)

func TestALoopThatWaitsForTheStoreIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := watchdog.New(clock.RealClock{}, silent)
		ctx, cancel := context.WithCancel(t.Context())
		answers := make(chan struct{})
		hang := func() error { <-answers; return nil }
		st := store.MemoryWith(func(string, string) error { return hang() }, func(string) error { return hang() })
		var running sync.WaitGroup
		running.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		for _, ask := range []func(context.Context) error{
			func(ctx context.Context) error { _, err := st.Get(ctx, "key", new(int)); return err },
			func(ctx context.Context) error { _, err := st.Put(ctx, "key", 1, 0); return err },
		} {
			running.Go(func() {
				p.Track(ctx, "a loop", func(ctx context.Context) {
					if err := ask(ctx); err != nil {
						t.Error(err)
					}
				})
			})
		}
		time.Sleep(3 * watchdog.Limit) // virtual
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		close(answers)
		synctest.Wait()
		cancel()
		running.Wait()
	})
}

// lines are what is logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

func TestALoopThatWaitsForTheAPIServerIsHealthy(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(asked); <-answer }))
	defer server.Close()
	defer close(answer)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := strings.ReplaceAll(kubeconfigText, "SERVER", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	unmeasured := func(string) func(http.RoundTripper) http.RoundTripper {
		return func(r http.RoundTripper) http.RoundTripper { return r }
	}
	api, err := connect(Options{Kubeconfig: kubeconfig, NodeName: "kip-0"}, unmeasured)
	if err != nil {
		t.Fatal(err)
	}
	clk, log := clocktesting.NewFakeClock(time.Unix(0, 0)), make(lines, 100)
	p := watchdog.New(clk, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		p.Track(ctx, "a loop", func(ctx context.Context) {
			if _, err := api.asNode.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); !errors.Is(err, context.Canceled) {
				t.Errorf("the request ended with %v", err)
			}
		})
	})
	<-asked
	for {
		select {
		case line := <-log:
			if !strings.Contains(line, `for="the API server"`) {
				t.Errorf("it is told %s", line)
			}
			return
		case <-time.After(time.Millisecond): // for what the ticks wake
			clk.Step(time.Second)
		}
	}
}
