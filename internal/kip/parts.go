package kip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// part is one of the things that run. A list of parts is in the order of their
// needs: a part may use those before it, from its start to its end.
type part struct {
	name string
	// run does the work until ctx ends. To return before that is to fail.
	run func(ctx context.Context) error
	// ready waits until those after it in the list may start, or until ctx ends.
	// Optional: they may start at once.
	ready func(ctx context.Context)
	// left says that the part does not run, by the configuration.
	left bool
}

// stopTime is how long a part that is stopped holds up the stop of those before it:
// one that hangs must not leave the rest at work.
const stopTime = 2 * time.Second

// errEnded is the failure of a part that returned although nobody had stopped it.
var errEnded = errors.New("it has ended by itself")

// runParts starts the parts in order, and stops them in reverse when ctx ends or the
// first of them fails. It returns when none runs, with that first failure.
func runParts(ctx context.Context, all []part) error {
	work, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var running sync.WaitGroup
	var stops []func()
	for _, p := range all {
		if p.left {
			continue
		}
		// The end of ctx reaches each part in its turn, not all at once.
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan struct{})
		running.Go(func() {
			defer close(ended)
			err := p.run(own)
			if own.Err() != nil {
				return
			}
			if err == nil {
				err = errEnded
			}
			fail(fmt.Errorf("%s: %w", p.name, err))
		})
		stops = append(stops, func() {
			cancel()
			select {
			case <-ended:
			case <-time.After(stopTime):
			}
		})
		if p.ready != nil {
			p.ready(work)
		}
		if work.Err() != nil {
			break
		}
	}
	<-work.Done()
	for _, stop := range slices.Backward(stops) {
		stop()
	}
	running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(work)
}
