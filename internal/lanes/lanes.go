// Package lanes owns how many agents are asked at the same time. It must not know what
// they are asked.
package lanes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/internal/pulse"
)

const (
	// quickAsks and slowAsks are how many agents are asked at the same time, those
	// that answer at once and those that do not.
	quickAsks, slowAsks = 64, 256
	// slowAfter is when an agent counts as slow. One that is well answers in
	// milliseconds, and in a second or two while its machine starts much at once.
	slowAfter = time.Second
)

// Lanes bound how many agents are asked at the same time. One that does not answer
// soon goes on in a lane of its own kind, so that however many do not answer, those
// that do are asked without a wait.
type Lanes struct{ quick, slow chan struct{} }

// New returns empty lanes.
func New() *Lanes {
	return &Lanes{quick: make(chan struct{}, quickAsks), slow: make(chan struct{}, slowAsks)}
}

// Pace is whether an agent was slow when it was asked last. The zero Pace is that of
// one that was not.
type Pace struct{ slow atomic.Bool }

// ErrSlow says that an agent did not answer soon, and there are too many such already. It is to
// be asked again later.
var ErrSlow = errors.New("the cell's agent does not answer soon, as many others do not")

// Ask asks an agent within a timeout, which begins when its turn has come.
func (l *Lanes) Ask(ctx context.Context, p *Pace, timeout time.Duration, ask func(context.Context) error) error {
	lane := l.quick
	if p.slow.Load() {
		lane = l.slow
	}
	over := pulse.Wait(ctx, pulse.Cell) // those before are being asked
	select {
	case lane <- struct{}{}:
		over()
	case <-ctx.Done():
		over()
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var mu sync.Mutex // guards lane, from here on
	late := time.AfterFunc(slowAfter, func() {
		p.slow.Store(true)
		mu.Lock()
		defer mu.Unlock()
		if lane != l.quick {
			return // it was slow before, or it has just answered
		}
		select {
		case l.slow <- struct{}{}:
			<-l.quick
			lane = l.slow
		default:
			giveUp(ErrSlow)
		}
	})
	err := ask(ctx)
	if late.Stop() {
		p.slow.Store(false)
	}
	mu.Lock()
	defer mu.Unlock()
	<-lane
	lane = nil
	if err != nil && errors.Is(context.Cause(ctx), ErrSlow) {
		return ErrSlow
	}
	return err
}
