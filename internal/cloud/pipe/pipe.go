package pipe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

// Config of a Pipe. All fields are required unless they say otherwise.
type Config struct {
	Cloud cloud.Cloud
	// Guard refuses to destroy what may not end, before the call waits. Optional: without it all may end.
	Guard Interceptor
	// Leads returns an error unless this process surely leads. Optional: without it no call is fenced.
	Leads func(context.Context) error
	// Meter is optional.
	Meter Meter
	// Random is for jitter. Optional.
	Random backoff.Random
	// Watchdog tracks the tasks of those who send what others have asked for. Optional.
	Watchdog *watchdog.Watchdog
	Clock    clock.Clock
}

// Call is one call to the cloud on its way through the pipe.
type Call struct {
	Kind cloud.Call
	// IDs are what the call names. The cloud answers for each. A call that names nothing has one answer.
	IDs []string
	// Launch is the request of a CallLaunch, which has an answer for each machine.
	Launch *cloud.LaunchRequest
	// turn is the turn in which the call is sent; nil if the limiter is to wait for one.
	turn *Turn
}

// size returns how many answers the call has.
func (c Call) size() int {
	if c.Launch != nil {
		return max(1, len(c.Launch.Machines))
	}
	return max(1, len(c.IDs))
}

// Fail returns err as each answer to the call.
func (c Call) Fail(err error) []Answer {
	all := make([]Answer, c.size())
	for n := range all {
		all[n].Err = err
	}
	return all
}

// Answer is what the cloud answers to a call, or for one of its IDs.
type Answer struct {
	Value any // nil where there is only an error, or none
	Err   error
}

// Err joins the errors of answers; nil if there are none.
func Err(all []Answer) error {
	errs := make([]error, len(all))
	for n := range all {
		errs[n] = all[n].Err
	}
	return errors.Join(errs...)
}

// Send makes a call, and returns its answers.
type Send func(ctx context.Context, call Call) []Answer

// Interceptor handles a call on its way. It sends the call, or parts of it, by next, or answers itself.
type Interceptor func(ctx context.Context, call Call, next Send) []Answer

// Pipe is a cloud whose calls go through the interceptors. A call that was throttled is sent again until its caller's ctx ends,
// except Launch. Its calls run in their callers' time: a Pipe needs no start and no stop.
type Pipe struct {
	cloud    cloud.Cloud
	limiter  *limiter
	batchers batchers
	meter    Meter         // may be nil
	order    []Interceptor // the first is the outermost
}

// New returns a pipe to a cloud.
func New(cfg Config) *Pipe {
	p := &Pipe{
		cloud:   cfg.Cloud,
		limiter: &limiter{cfg: cfg, kinds: map[cloud.Call]*limit{}},
		meter:   cfg.Meter,
	}
	p.batchers = newBatchers(p.limiter)
	if cfg.Guard != nil {
		p.order = append(p.order, cfg.Guard)
	}
	p.order = append(p.order, p.batchers.intercept, p.limiter.intercept)
	if cfg.Leads != nil {
		p.order = append(p.order, fence(cfg.Leads))
	}
	if cfg.Meter != nil {
		p.order = append(p.order, cfg.Meter.Intercept)
	}
	return p
}

// Do makes a call through all interceptors. send makes the call to the cloud itself. It may be given some of the IDs only, or also
// IDs for which another caller asks at the same time.
func (p *Pipe) Do(ctx context.Context, call Call, send Send) []Answer {
	next := func(ctx context.Context, call Call) []Answer { return complete(call, send(ctx, call)) }
	for _, i := range slices.Backward(p.order) {
		inner := next
		next = func(ctx context.Context, call Call) []Answer { return i(ctx, call, inner) }
	}
	return next(ctx, call)
}

// complete makes sure that a call has all its answers.
func complete(call Call, all []Answer) []Answer {
	if n := call.size(); len(all) != n {
		err := fmt.Errorf("the cloud answered a %s of %d with %d results", call.Kind, n, len(all))
		if said := Err(all); said != nil { // as text: an answer for one says nothing of the others
			err = fmt.Errorf("%w: %s", err, said.Error())
		}
		return call.Fail(err)
	}
	return all
}

// ask makes a call that has one answer with a value. It names at most one thing.
func ask[T any](ctx context.Context, p *Pipe, call Call, send func(context.Context) (T, error)) (T, error) {
	answer := p.Do(ctx, call, func(ctx context.Context, _ Call) []Answer {
		value, err := send(ctx)
		return []Answer{{Value: value, Err: err}}
	})[0]
	value, _ := answer.Value.(T)
	return value, answer.Err
}

// tell makes a call about one thing that has no value. The call names it by its ID.
func (p *Pipe) tell(ctx context.Context, kind cloud.Call, id string, send func(context.Context) error) error {
	return p.Do(ctx, Call{Kind: kind, IDs: []string{id}}, func(ctx context.Context, _ Call) []Answer {
		return []Answer{{Err: send(ctx)}}
	})[0].Err
}

// each makes a call that the cloud answers by ID.
func (p *Pipe) each(
	ctx context.Context, kind cloud.Call, ids []string, send func(ctx context.Context, ids ...string) cloud.Results,
) cloud.Results {
	results := cloud.Each(nil, ids...)
	if len(ids) == 0 {
		return results
	}
	answers := p.Do(ctx, Call{Kind: kind, IDs: ids}, func(ctx context.Context, call Call) []Answer {
		some := send(ctx, call.IDs...)
		answers := make([]Answer, len(some))
		for n := range some {
			answers[n].Err = some[n].Err
		}
		return answers
	})
	for n := range results {
		results[n].Err = answers[n].Err
	}
	return results
}
