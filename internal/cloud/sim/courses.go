package sim

import (
	"context"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// courses lets machines begin, go on and end.
type courses struct {
	*base
	machines       *machines
	holdings       *holdings
	disks          *disks
	ownedResources *ownedResources
}

// show lets lists see the machine as it is now, in due time.
func (c *courses) show(m *machine, now time.Time) {
	m.shows++
	v := view{from: now.Add(c.knobs.ListLag.draw(c.rand("list lag", m.ID, m.shows))), instance: m.Instance.Instance, gone: !m.Ended.IsZero()}
	if n := len(m.views); n > 0 {
		v.from = later(v.from, m.views[n-1].from)
		oldest := now.Add(-c.knobs.StaleBy)
		for len(m.views) > 1 && !m.views[1].from.After(oldest) {
			// Should StaleBy be raised, an answer may ask further back: what was
			// shown by then is never hidden again.
			m.views[1].from = m.views[0].from
			m.views = m.views[1:]
		}
	}
	m.views = append(m.views, v)
}

// at lets something happen to a machine at a time. What is due happens at once.
// do gets the time at which it was due, with c.mu held.
func (c *courses) at(m *machine, due time.Time, course bool, do func(now time.Time)) {
	wait := due.Sub(c.clock.Now())
	if wait <= 0 {
		do(due)
		return
	}
	e := &event{}
	m.events[e] = course
	happen := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, still := m.events[e]; !still || c.closed {
			return
		}
		delete(m.events, e)
		do(due)
	}
	// A stepped clock calls back with its lock held, and happen asks it the time.
	e.timer = c.clock.AfterFunc(wait, func() { go happen() })
}

// step is a part of a machine's course.
type step struct {
	at time.Time
	do func(now time.Time)
}

// follow takes steps one after another, so that those of the same moment keep
// their order.
func (c *courses) follow(m *machine, steps []step) {
	if len(steps) == 0 {
		return
	}
	c.at(m, steps[0].at, true, func(now time.Time) {
		steps[0].do(now)
		c.follow(m, steps[1:])
	})
}

// add lets a new machine begin, with its network interface.
func (c *courses) add(m *machine, now time.Time) {
	c.machines.byID[m.ID] = m
	c.machines.all = append(c.machines.all, m)
	c.ownedResources.addPart(m)
	c.begin(m, now)
}

// begin lets a machine run, from its launch or start on.
func (c *courses) begin(m *machine, now time.Time) {
	m.starts++
	r := c.rand("start", m.ID, m.starts)
	addressed := now.Add(c.knobs.AddressDelay.draw(r))
	running := now.Add(c.knobs.Pending.draw(r))
	boot := c.knobs.bootTime(m.InstanceType)
	booted := later(running.Add(boot.draw(r)), addressed)
	never := happens(r, boot.Never)

	c.holdings.hold(m)
	m.charged = now
	m.State, m.On, m.Booted = cloud.Pending, true, time.Time{}
	steps := []step{{running, func(now time.Time) {
		m.State = cloud.Running
		c.show(m, now)
	}}}
	if m.slot == 0 {
		c.holdings.takeAddress(m)
	}
	if !m.ManagementIP.IsValid() {
		steps = append(steps, step{addressed, func(now time.Time) {
			m.ManagementIP, m.PodIP = c.holdings.plan.at(m.slot)
			c.show(m, now)
		}})
	}
	if !never {
		steps = append(steps, step{booted, func(now time.Time) { c.boot(m, now) }})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	c.show(m, now)
	c.log.Debug("an instance begins", "instance", m.ID, "cell", m.Tags[cloud.TagCell], "offering", m.offering, "never_boots", never)
	c.follow(m, steps)
}

func (c *courses) boot(m *machine, now time.Time) {
	m.Booted, m.ran = now, true
	if c.cfg.Boot == nil {
		return
	}
	ctx, cancel := context.WithCancel(c.ctx)
	m.stopBoot = cancel
	i, data := m.public(), m.userData
	c.boots.Go(func() { c.cfg.Boot(ctx, i, data) })
}

// halt takes from a machine what only one that runs has.
func (c *courses) halt(m *machine, now time.Time) {
	if m.stopBoot != nil {
		m.stopBoot()
		m.stopBoot = nil
	}
	m.On = false
	c.holdings.release(m)
	if !m.charged.IsZero() {
		m.charge.time += now.Sub(m.charged)
		m.charged = time.Time{}
	}
}

// end is the end of a machine, whatever it did.
func (c *courses) end(m *machine, now time.Time, cause Cause) {
	if !m.Ended.IsZero() {
		return
	}
	m.cancelEvents(false)
	c.halt(m, now)
	c.holdings.freeAddress(m)
	c.disks.freeDisks(m.ID)
	c.ownedResources.freeParts(m)
	m.userData = nil
	if c.cfg.End != nil && m.ran {
		i := m.public()
		c.boots.Go(func() { c.cfg.End(c.ctx, i) })
	}
	m.State, m.Ended, m.Cause = cloud.Terminating, now, cause
	c.machines.history = append(c.machines.history, m.Instance)
	c.show(m, now)
	c.log.Debug("an instance has ended", "instance", m.ID, "cell", m.Tags[cloud.TagCell], "cause", cause)
}
