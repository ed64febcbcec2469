package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// planned is a fault of one call to come.
type planned struct {
	kind  Kind
	n     int
	fault Fault
}

// calls takes each call from its arrival to its answer.
type calls struct {
	*base

	counts   map[Kind]int
	outcomes map[CallKey]int
	planned  []planned
	buckets  map[bucketKey]*bucket
}

// FailNth makes f happen to the nth call of the kind from now on, 1 being the
// next; with AnyKind, to the nth of all calls.
func (c *calls) FailNth(kind Kind, n int, f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.planned = append(c.planned, planned{kind, c.counts[kind] + n, f})
}

// do takes a call from its arrival to its answer. effect runs with c.mu held, at
// most once, and is where the call does what it does.
func (c *calls) do(ctx context.Context, call Call, effect func(now time.Time) error) error {
	call, f, latency := c.arrive(call)
	if c.cfg.Fault != nil {
		if hooked := c.cfg.Fault(call); !hooked.none() {
			f = hooked
		}
	}
	done := false
	err := func() error {
		if err := c.pause(ctx, latency/2+f.Delay); err != nil {
			return err
		}
		if f.HangBefore {
			return c.hang(ctx)
		}
		if f.Before != nil {
			return f.Before
		}
		err := c.serve(call, effect)
		done = err == nil || errors.Is(err, errPartial)
		if f.Then != nil {
			f.Then()
		}
		if f.HangAfter {
			return c.hang(ctx)
		}
		if late := c.pause(ctx, latency-latency/2); late != nil {
			return late
		}
		if f.After != nil {
			return f.After
		}
		return err
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes[CallKey{call.Kind, outcome(err, done)}]++
	if errors.Is(err, errPartial) {
		return nil
	}
	return err
}

// arrive counts a call and draws what happens to it.
func (c *calls) arrive(call Call) (Call, Fault, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[call.Kind]++
	c.counts[AnyKind]++
	call.N, call.Total, call.Time = c.counts[call.Kind], c.counts[AnyKind], c.clock.Now()

	r := c.rand("call", string(call.Kind), call.N)
	latency := ofKind(c.knobs.Latency, call.Kind).draw(r)
	f := ofKind(c.knobs.Faults, call.Kind).fault(r.Float64())
	left := c.planned[:0]
	for _, p := range c.planned {
		if p.kind == call.Kind && p.n == call.N || p.kind == AnyKind && p.n == call.Total {
			f = p.fault
		} else {
			left = append(left, p)
		}
	}
	c.planned = left
	return call, f, latency
}

func ofKind[T any](m map[Kind]T, k Kind) T {
	if v, ok := m[k]; ok {
		return v
	}
	return m[AnyKind]
}

// serve gives the call its effect, unless the caller may not have it.
func (c *calls) serve(call Call, effect func(now time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	switch {
	case c.closed:
		return errClosed
	case c.knobs.Unauthorised:
		return errAuth
	}
	if err := c.take(call.Kind, "request", c.knobs.RateLimits[call.Kind].Requests, 1, now); err != nil {
		return err
	}
	return effect(now)
}

// takeResources takes the tokens for n machines.
func (c *calls) takeResources(kind Kind, n int, now time.Time) error {
	return c.take(kind, "resource", c.knobs.RateLimits[kind].Resources, n, now)
}

type bucketKey struct {
	kind Kind
	what string
}

type bucket struct {
	Bucket
	tokens float64
	filled time.Time
}

func (c *calls) take(kind Kind, what string, limit Bucket, n int, now time.Time) error {
	if limit == (Bucket{}) {
		return nil
	}
	key := bucketKey{kind, what}
	b := c.buckets[key]
	if b == nil || b.Bucket != limit {
		b = &bucket{limit, limit.Capacity, now}
		c.buckets[key] = b
	}
	// Tokens come once a second, not bit by bit.
	if seconds := math.Floor(now.Sub(b.filled).Seconds()); seconds > 0 {
		b.tokens = min(b.Capacity, b.tokens+seconds*b.Refill)
		b.filled = b.filled.Add(time.Duration(seconds) * time.Second)
	}
	if b.tokens < float64(n) {
		return cloud.No(cloud.ErrThrottled, cloud.Scope{Account: true},
			fmt.Errorf("RequestLimitExceeded: the %s bucket of %s has %g tokens of %d needed", what, kind, b.tokens, n))
	}
	b.tokens -= float64(n)
	return nil
}

// pause waits, and says why it did not wait to the end.
func (c *calls) pause(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d <= 0 {
		return nil
	}
	t := c.clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return errClosed
	}
}

func (c *calls) hang(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return errClosed
	}
}

// CallKey is what calls are counted by.
type CallKey struct {
	Kind    Kind
	Outcome Outcome
}

// Calls returns how many calls of each kind ended in each way.
func (c *calls) Calls() map[CallKey]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.outcomes)
}

// Take lets a call arrive that does what no method does: it is counted and bounded, and
// meets its faults like any other. effect runs at most once, and must not call the cloud.
func (c *calls) Take(ctx context.Context, call Call, effect func() error) error {
	return c.do(ctx, call, func(time.Time) error { return effect() })
}
