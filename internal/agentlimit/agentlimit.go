// Package agentlimit owns how many agents are asked at the same time. It must not know what
// they are asked.
package agentlimit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/watchdog"
)

const (
	// quickAsks and slowAsks are how many agents are asked at the same time, those
	// that answer at once and those that do not, and slowOfOne how many of these are of one share.
	quickAsks, slowAsks, slowOfOne = 64, 256, 192
	// slowAfter is when an agent counts as slow. One that is well answers in
	// milliseconds, and in a second or two while its machine starts much at once.
	slowAfter = time.Second
)

// Limiter bounds how many agents are asked at the same time. One that does not answer
// soon goes on in a lane of its own kind, so that however many do not answer, those
// that do are asked without a wait.
type Limiter struct {
	quick chan struct{}
	slow  *keyed.Places[string]
}

// New returns a limiter that nobody waits at.
func New() *Limiter {
	return &Limiter{quick: make(chan struct{}, quickAsks), slow: keyed.NewPlaces[string](slowAsks, slowOfOne)}
}

// Pace is whether an agent was slow when it was asked last. The zero Pace is that of
// one that was not.
type Pace struct{ slow atomic.Bool }

// ErrSlow says that an agent did not answer soon, and there are too many such already. It is to
// be asked again later.
var ErrSlow = errors.New("the cell's agent does not answer soon, as many others do not")

// Ask asks an agent within a timeout, which begins when its turn has come. Those of one share, such as a namespace, have
// only a part of the slow lane.
func (l *Limiter) Ask(ctx context.Context, p *Pace, share string, timeout time.Duration, ask func(context.Context) error) error {
	quick := !p.slow.Load()
	leave, err := l.enter(ctx, quick, share)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var mu sync.Mutex // guards quick and leave, from here on
	late := time.AfterFunc(slowAfter, func() {
		p.slow.Store(true)
		mu.Lock()
		defer mu.Unlock()
		if !quick {
			return // it was slow before, or it has just answered
		}
		leaveSlow, ok := l.slow.TryTake(share)
		if !ok {
			giveUp(ErrSlow)
			return
		}
		leave()
		quick, leave = false, leaveSlow
	})
	err = ask(ctx)
	if late.Stop() {
		p.slow.Store(false)
	}
	mu.Lock()
	defer mu.Unlock()
	leave()
	quick = false
	if err != nil && errors.Is(context.Cause(ctx), ErrSlow) {
		return ErrSlow
	}
	return err
}

// enter waits for a place in a lane.
func (l *Limiter) enter(ctx context.Context, quick bool, share string) (leave func(), err error) {
	defer watchdog.Wait(ctx, watchdog.Cell)() // those before are being asked
	if !quick {
		if leave, err = l.slow.Take(ctx, share); err != nil {
			return nil, context.Cause(ctx)
		}
		return leave, nil
	}
	select {
	case l.quick <- struct{}{}:
		return func() { <-l.quick }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
