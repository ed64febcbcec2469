package kip

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestAStoppedComponentEndsAndDoesNotEndTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		running := make(chan struct{})
		s := newStoppable(func(ctx context.Context) error {
			close(running)
			<-ctx.Done()
			return errors.New("ended")
		})
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		<-running
		for range 2 {
			if err := s.Stop(ctx); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("Run has returned %v, which ends all of Kip", err)
		default:
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}

		failing := newStoppable(func(context.Context) error { return errors.New("broken") })
		if err := failing.Run(t.Context()); err == nil || err.Error() != "broken" {
			t.Errorf("a component that fails by itself: %v", err)
		}
	})
}
