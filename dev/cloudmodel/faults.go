package cloudmodel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Hang lets one call of an action hang until its caller is gone.
type Hang struct {
	Action string // the cloud's name of it
	Nth    int    // from now on; 1 is the next
	// After lets it succeed first, and counts those that do.
	After bool
}

// Loss breaks the connection of one call, so that its answer is lost.
type Loss struct {
	Call cloud.Call // its kind
	Nth  int        // from now on; 1 is the next
	// After lets it have its effect first.
	After bool
}

// Failure answers one call with an error, and lets it have no effect.
type Failure struct {
	Call cloud.Call // its kind
	Nth  int        // from now on; 1 is the next
	Code string     // the cloud's
}

// Throttle bounds the calls of a kind: each takes a token, of which there are Capacity, and Refill
// more each second. 0 of both is no bound.
type Throttle struct {
	Call             cloud.Call
	Capacity, Refill float64
}

// Denial lets the model not know an instance that is there: the next Calls that name it are answered
// as if there were none, and lists of instances that would show it do not.
type Denial struct {
	Instance string
	Calls    int // 0 ends it
}

// Capacity is for how many instances there is room, of a type, in a zone and in a subnet, each of
// which is any when ""; a negative number is no bound.
type Capacity struct {
	Type, Zone, Subnet string
	Instances          int
}

// Interfaces says what becomes of the network interfaces of the instances that end from now on.
type Interfaces struct {
	// Stay says that they outlive their instances.
	Stay bool
}

// Interruption takes a spot instance back.
type Interruption struct {
	Instance string        // the youngest spot instance when ""
	Notice   time.Duration // how long before; the machines' own when 0
	// Untold are the ways by which nothing is said of it.
	Untold []Way
}

// Way is one by which a cloud says that it takes an instance back.
type Way string

// Hang plans one.
func (m *Model) Hang(h Hang) error {
	if m.cfg.Knows == nil || !m.cfg.Knows(h.Action) {
		return fmt.Errorf("the field Action is %q: want one of %s that the model knows, such as %s",
			h.Action, m.cfg.Words.Cloud, m.cfg.Words.Action)
	}
	if h.Nth < 1 {
		return fmt.Errorf("the field Nth is %d: want 1 or more", h.Nth)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = append(m.hangs, h)
	return nil
}

// hang lets a call hang that was to, before its effect or after it. Its error is that the caller
// is gone.
func (m *Model) hang(ctx context.Context, action string, after bool) error {
	m.mu.Lock()
	is := false
	for n := range m.hangs {
		if h := &m.hangs[n]; h.Action == action && h.After == after {
			h.Nth--
			is = is || h.Nth == 0
		}
	}
	m.hangs = slices.DeleteFunc(m.hangs, func(h Hang) bool { return h.Nth == 0 })
	if is {
		m.hung = append(m.hung, action)
	}
	m.mu.Unlock()
	if !is {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// mishap is what happens to one call that is to come.
type mishap struct {
	call  cloud.Call
	nth   int
	fault sim.Fault
}

// kinds are those of the calls that models take.
var kinds = []cloud.Call{
	cloud.CallLaunch, cloud.CallList, cloud.CallDescribe, cloud.CallTerminate, cloud.CallStop, cloud.CallStart, cloud.CallTag,
	cloud.CallCatalogue, cloud.CallInterruptions, cloud.CallCreateDisk, cloud.CallDeleteDisk, cloud.CallListDisks,
	cloud.CallAttachDisk, cloud.CallDetachDisk, cloud.CallGrowDisk, cloud.CallRoute, cloud.CallUnroute, cloud.CallListOwned,
	cloud.CallDeleteOwned, cloud.CallPullCredentials, cloud.CallEndBoost,
}

// plan has one happen.
func (m *Model) plan(one mishap) error {
	switch {
	case !slices.Contains(kinds, one.call):
		return fmt.Errorf("the field Call is %q: want one of %q", one.call, kinds)
	case one.nth < 1:
		return fmt.Errorf("the field Nth is %d: want 1 or more", one.nth)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mishaps = append(m.mishaps, one)
	return nil
}

// fault is the machines' question of what goes wrong with a call.
func (m *Model) fault(c sim.Call) sim.Fault {
	m.mu.Lock()
	met := false
	var is mishap
	kept := m.mishaps[:0]
	for _, one := range m.mishaps {
		if one.call == c.Kind {
			one.nth--
		}
		if one.nth < 1 && !met {
			met, is = true, one
			continue
		}
		kept = append(kept, one)
	}
	m.mishaps = kept
	m.mu.Unlock()
	if !met && m.cfg.Sim.Fault != nil {
		return m.cfg.Sim.Fault(c)
	}
	return is.fault
}

// Lose plans a loss.
func (m *Model) Lose(l Loss) error {
	fault := sim.Fault{Before: sim.ErrLost}
	if l.After {
		fault = sim.Fault{After: sim.ErrLost}
	}
	return m.plan(mishap{call: l.Call, nth: l.Nth, fault: fault})
}

// FailCall plans a failure.
func (m *Model) FailCall(f Failure) error {
	if f.Code == "" {
		return fmt.Errorf("the field Code is empty: want one of %s's, such as %s", m.cfg.Words.Cloud, m.cfg.Words.Code)
	}
	return m.plan(mishap{call: f.Call, nth: f.Nth, fault: sim.Fault{Before: m.cfg.Refusal(f.Code)}})
}

// Throttle bounds calls.
func (m *Model) Throttle(t Throttle) error {
	if !slices.Contains(kinds, t.Call) {
		return fmt.Errorf("the field Call is %q: want one of %q", t.Call, kinds)
	}
	return m.sim.Change(func(k *sim.Knobs) {
		if k.RateLimits == nil {
			k.RateLimits = map[sim.Kind]sim.RateLimit{}
		}
		limit := k.RateLimits[t.Call]
		limit.Requests = sim.Bucket{Capacity: t.Capacity, Refill: t.Refill}
		k.RateLimits[t.Call] = limit
	})
}

// Deny begins or ends a denial.
func (m *Model) Deny(d Denial) error {
	if d.Calls < 0 {
		return fmt.Errorf("the field Calls is %d: want 0 or more", d.Calls)
	}
	if err := m.MustLive(d.Instance); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.denied[d.Instance] = d.Calls
	return nil
}

// Denies reports whether a call does not know an instance that is denied, and counts it.
func (m *Model) Denies(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.denied[id] < 1 {
		return false
	}
	m.denied[id]--
	return true
}

// Bound bounds capacity, or lifts that.
func (m *Model) Bound(c Capacity) error {
	m.sim.SetCapacity(sim.Pool{InstanceType: c.Type, Zone: c.Zone, Subnet: c.Subnet}, c.Instances)
	return nil
}

// Interfaces changes what becomes of them.
func (m *Model) Interfaces(i Interfaces) error {
	return m.sim.Change(func(k *sim.Knobs) {
		k.OwnedLeft = 0
		if i.Stay {
			k.OwnedLeft = 1
		}
	})
}

// Interrupt takes a spot instance back.
func (m *Model) Interrupt(i Interruption) error {
	for _, w := range i.Untold {
		if !slices.Contains(m.cfg.Ways, w) {
			return fmt.Errorf("the field Untold has %q: want some of %q", w, m.cfg.Ways)
		}
	}
	if i.Instance == "" {
		if i.Instance = m.youngestSpot(); i.Instance == "" {
			return errors.New("the field Instance is empty, and there is no spot instance")
		}
	}
	m.mu.Lock()
	m.untold[i.Instance] = i.Untold
	m.mu.Unlock()
	if err := m.sim.Change(func(k *sim.Knobs) { k.InterruptionNotice = i.Notice }); err != nil {
		return err
	}
	return m.sim.Interrupter.Interrupt(i.Instance)
}

// Announced returns the notices of which something is said by a way.
func (m *Model) Announced(by Way) []cloud.Interruption {
	all := m.sim.Interrupter.Announced()
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(all, func(i cloud.Interruption) bool { return slices.Contains(m.untold[i.InstanceID], by) })
}
