package cells

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/watchdog"
)

// deaf is a session to a cell that never answers.
type deaf struct{ Session }

func (deaf) Ready() <-chan struct{} { return nil }

func TestALoopThatWaitsForACellOrForItsNextTryIsHealthy(t *testing.T) {
	for name, wait := range map[string]func(context.Context, *draining){
		"a session": func(ctx context.Context, _ *draining) { agentSession{deaf{}}.ready(ctx) },
		"the logs of others": func(ctx context.Context, s *draining) {
			if err := s.saving.save(ctx, newEntry(Cell{}, 0)); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		},
		"the volumes of others": func(ctx context.Context, s *draining) {
			if err := s.volumes.askUntilFree(ctx, newEntry(Cell{}, 0), time.Second, nil); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		},
		"the next try": func(ctx context.Context, s *draining) { s.loop.sleep(ctx, time.Hour) },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := watchdog.New(clock.RealClock{}, slog.New(slog.DiscardHandler))
			none := keyed.NewPlaces[string](0, 0)
			s := &draining{loop: &loop{clock: clock.RealClock{}}, saving: &savingLogs{places: none}, volumes: &freeingVolumes{places: none}}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				if err := p.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			running.Go(func() { p.Track(ctx, "cells", func(ctx context.Context) { wait(ctx, s) }) })
			time.Sleep(3 * watchdog.Limit) // virtual
			if err := p.Err(); err != nil {
				t.Errorf("while it waits for %s: %v", name, err)
			}
			cancel()
			running.Wait()
		})
	}
}
