package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// notice is an interruption that was announced.
type notice struct {
	cloud.Interruption
	n int // the how manieth, from 1
	m *machine
}

// interruptions takes machines back, and announces it.
type interruptions struct {
	*base
	calls    *calls
	machines *machines
	courses  *courses

	notices  []notice
	noticed  int           // notices ever given
	changed  chan struct{} // closed and replaced when there is news for streams
	streams  int           // counts what CutInterruptions ended
	cutCause error
}

// Interruptions implements cloud.Interrupter. A new call is told of what is
// announced and has not ended yet.
func (c *interruptions) Interruptions(ctx context.Context, l cloud.Listener) error {
	if err := c.listen(ctx, l.Notify); err != nil {
		return fmt.Errorf("wait for interruptions of %s: %w", c.cfg.Name, err)
	}
	return nil
}

func (c *interruptions) listen(ctx context.Context, tell func(cloud.Interruption)) error {
	stream := 0
	err := c.calls.do(ctx, Call{Kind: KindInterruptions}, func(time.Time) error {
		stream = c.streams
		return nil
	})
	if err != nil {
		return err
	}
	told := 0
	for {
		c.mu.Lock()
		changed := c.changed
		var end error
		switch {
		case c.closed:
			end = errClosed
		case c.knobs.Unauthorised:
			end = errAuth
		case stream != c.streams:
			end = c.cutCause
		}
		var news []cloud.Interruption
		for _, n := range c.notices {
			if n.n > told && n.m.Ended.IsZero() {
				news = append(news, n.Interruption)
			}
		}
		told = c.noticed
		c.mu.Unlock()
		if end != nil {
			return end
		}
		for _, n := range news {
			if ctx.Err() != nil {
				break
			}
			n.Left = n.At.Sub(c.clock.Now())
			tell(n)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.ctx.Done():
			return errClosed
		case <-changed:
		}
	}
}

// Announced returns the interruptions that were announced of instances that have not ended.
func (c *interruptions) Announced() (all []cloud.Interruption) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.notices {
		if n.m.Ended.IsZero() {
			all = append(all, n.Interruption)
		}
	}
	return all
}

func (c *interruptions) tellStreams() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// CutInterruptions ends what Interruptions has under way with a cause, which must
// not be nil.
func (c *interruptions) CutInterruptions(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams++
	c.cutCause = cause
	c.tellStreams()
}

// Interrupt decides now to take instances back, spot or not: they are announced,
// and end Knobs.InterruptionNotice later. Those that are stopped or ending
// already are left alone.
func (c *interruptions) Interrupt(ids ...string) error {
	return c.strike("interrupt", ids, c.interrupt)
}

// Vanish ends instances now, without a word.
func (c *interruptions) Vanish(ids ...string) error {
	return c.strike("end", ids, func(m *machine, now time.Time) { c.courses.end(m, now, Vanished) })
}

func (c *interruptions) strike(what string, ids []string, do func(*machine, time.Time)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	var errs []error
	for _, id := range ids {
		m := c.machines.byID[id]
		if c.closed || m == nil || !m.Ended.IsZero() {
			errs = append(errs, fmt.Errorf("%s %s: there is no such instance", what, id))
			continue
		}
		do(m, now)
	}
	return errors.Join(errs...)
}

// interrupt takes back a machine that runs, once.
func (c *interruptions) interrupt(m *machine, now time.Time) {
	if !m.interruption.IsZero() || m.State != cloud.Pending && m.State != cloud.Running {
		return
	}
	m.interruption = now.Add(c.knobs.interruptionNotice())
	if !happens(c.rand("notice", m.ID, 0), c.knobs.NoticesLost) {
		c.notices = slices.DeleteFunc(c.notices, func(n notice) bool { return !n.m.Ended.IsZero() })
		c.noticed++
		c.notices = append(c.notices, notice{n: c.noticed, m: m, Interruption: cloud.Interruption{
			InstanceID: m.ID, At: m.interruption, Reason: "the simulated cloud takes the instance back",
		}})
		c.tellStreams()
	}
	c.courses.at(m, m.interruption, false, func(now time.Time) { c.courses.end(m, now, Interrupted) })
}
