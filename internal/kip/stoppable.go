package kip

import (
	"context"
	"sync"
)

// stoppable runs a component that can be ended before all else is.
type stoppable struct {
	run     func(context.Context) error
	stop    chan struct{}
	stopped chan struct{} // closed when it does not run, and will not any more
	once    sync.Once
}

func newStoppable(run func(context.Context) error) *stoppable {
	return &stoppable{run: run, stop: make(chan struct{}), stopped: make(chan struct{})}
}

// Run runs the component until ctx ends, or it is stopped: then it waits for ctx.
func (s *stoppable) Run(ctx context.Context) error {
	err := func() error {
		defer close(s.stopped)
		running, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-s.stop:
				cancel()
			case <-running.Done():
			}
		}()
		return s.run(running)
	}()
	select {
	case <-s.stop:
		<-ctx.Done()
		return nil
	default:
		return err
	}
}

// Stop ends the component for good and waits for that.
func (s *stoppable) Stop(ctx context.Context) error {
	s.once.Do(func() { close(s.stop) })
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
