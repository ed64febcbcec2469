package sim

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud"
)

// machine is one instance. c.mu guards all of it.
type machine struct {
	Instance // the truth

	offering offering
	vcpus    int64
	userData []byte
	known    time.Time // when Terminate, Stop and Start know it

	slot    int  // of the address plan; 0 when it holds no address
	holds   bool // takes capacity and quota
	charge  *charge
	charged time.Time // since when it is paid for; zero when it is not

	starts, shows, terminations int

	ran bool // it has booted once

	events   map[*event]bool
	stopBoot context.CancelFunc
	views    []view // what lists show, oldest first

	interruption time.Time // when the cloud takes it back, once decided
}

// view is what List shows of a machine from a time on.
type view struct {
	from     time.Time
	instance cloud.Instance
	gone     bool
}

// event is something that happens to a machine later. The value in
// machine.events says whether it belongs to its course, which the next Stop,
// Start or Terminate replaces.
type event struct{ timer clock.Timer }

func clone(i cloud.Instance) cloud.Instance {
	i.Tags = maps.Clone(i.Tags)
	return i
}

// public is the machine as an answer tells it.
func (m *machine) public() cloud.Instance {
	i := clone(m.Instance.Instance)
	if !m.Ended.IsZero() {
		i.ManagementIP, i.PodIP = netip.Addr{}, netip.Addr{} // perhaps another's by now
	}
	return i
}

// seen returns what lists showed at a time, nil for nothing.
func (m *machine) seen(at time.Time) *view {
	for i := len(m.views) - 1; i >= 0; i-- {
		if !m.views[i].from.After(at) {
			return &m.views[i]
		}
	}
	return nil
}

// show lets lists see the machine as it is now, in due time.
func (c *Cloud) show(m *machine, now time.Time) {
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// at lets something happen to a machine at a time. What is due happens at once.
// do gets the time at which it was due, with c.mu held.
func (c *Cloud) at(m *machine, due time.Time, course bool, do func(now time.Time)) {
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

// cancelEvents lets none of the machine's events happen, or none of its course.
func (m *machine) cancelEvents(courseOnly bool) {
	for e, course := range m.events {
		if course || !courseOnly {
			e.timer.Stop()
			delete(m.events, e)
		}
	}
}

// step is a part of a machine's course.
type step struct {
	at time.Time
	do func(now time.Time)
}

// follow takes steps one after another, so that those of the same moment keep
// their order.
func (c *Cloud) follow(m *machine, steps []step) {
	if len(steps) == 0 {
		return
	}
	c.at(m, steps[0].at, true, func(now time.Time) {
		steps[0].do(now)
		c.follow(m, steps[1:])
	})
}

// create launches the nth machine of a request.
func (c *Cloud) create(r cloud.LaunchRequest, l *launched, n int, o offering, price float64, vcpus int64, now time.Time) *machine {
	m := &machine{
		offering: o,
		vcpus:    vcpus,
		userData: r.UserDataOf(n),
		events:   map[*event]bool{},
	}
	m.Instance = Instance{Token: r.Token, Instance: cloud.Instance{
		ID:           c.newID(l, r.Token, n),
		InstanceType: o.instanceType,
		Zone:         o.zone,
		Subnet:       o.subnet,
		Spot:         o.spot,
		Launched:     now,
		Tags:         r.TagsOf(n),
		Place:        cloud.PlaceOf(n),
	}}
	fate := c.rand("fate", m.ID, 0)
	m.known = now.Add(c.knobs.UnknownFor.draw(fate))
	m.charge = c.chargeFor(o, price)
	m.charge.instances++
	c.byID[m.ID] = m
	c.machines = append(c.machines, m)
	c.addPart(m)
	c.begin(m, now)
	if mean := c.knobs.MTBF; mean > 0 {
		c.at(m, now.Add(exponential(fate, mean)), false, func(now time.Time) { c.end(m, now, Vanished) })
	}
	if mean := c.knobs.SpotMTBF; mean > 0 && o.spot {
		c.at(m, now.Add(exponential(fate, mean)), false, func(now time.Time) { c.interrupt(m, now) })
	}
	return m
}

// newID looks like EC2's.
func (c *Cloud) newID(l *launched, token string, n int) string {
	r := c.rand("id", token, l.use*cloud.MaxLaunch+n)
	for {
		id := fmt.Sprintf("i-%017x", r.Uint64())
		if c.byID[id] == nil {
			return id
		}
	}
}

// begin lets a machine run, from its launch or start on.
func (c *Cloud) begin(m *machine, now time.Time) {
	m.starts++
	r := c.rand("start", m.ID, m.starts)
	addressed := now.Add(c.knobs.AddressDelay.draw(r))
	running := now.Add(c.knobs.Pending.draw(r))
	boot := c.knobs.bootTime(m.InstanceType)
	booted := later(running.Add(boot.draw(r)), addressed)
	never := happens(r, boot.Never)

	c.hold(m)
	m.charged = now
	m.State, m.On, m.Booted = cloud.Pending, true, time.Time{}
	steps := []step{{running, func(now time.Time) {
		m.State = cloud.Running
		c.show(m, now)
	}}}
	if m.slot == 0 {
		c.takeAddress(m)
	}
	if !m.ManagementIP.IsValid() {
		steps = append(steps, step{addressed, func(now time.Time) {
			m.ManagementIP, m.PodIP = c.plan.at(m.slot)
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

func (c *Cloud) boot(m *machine, now time.Time) {
	m.Booted, m.ran = now, true
	if c.cfg.Boot == nil {
		return
	}
	ctx, cancel := context.WithCancel(c.ctx)
	m.stopBoot = cancel
	i, data := m.public(), m.userData
	c.boots.Go(func() { c.cfg.Boot(ctx, i, data) })
}

func (c *Cloud) hold(m *machine) {
	m.holds = true
	h := c.held[m.offering]
	if h == nil {
		h = &holding{}
		c.held[m.offering] = h
	}
	h.instances++
	h.vcpus += m.vcpus
}

func (c *Cloud) release(m *machine) {
	if m.holds {
		m.holds = false
		h := c.held[m.offering]
		h.instances--
		h.vcpus -= m.vcpus
	}
}

// halt takes from a machine what only one that runs has.
func (c *Cloud) halt(m *machine, now time.Time) {
	if m.stopBoot != nil {
		m.stopBoot()
		m.stopBoot = nil
	}
	m.On = false
	c.release(m)
	if !m.charged.IsZero() {
		m.charge.time += now.Sub(m.charged)
		m.charged = time.Time{}
	}
}

func (c *Cloud) takeAddress(m *machine) {
	m.slot = c.plan.take()
	c.addresses[m.Subnet]++
}

func (c *Cloud) freeAddress(m *machine) {
	if m.slot != 0 {
		c.plan.giveBack(m.slot)
		c.addresses[m.Subnet]--
		m.slot = 0
	}
}

// end is the end of a machine, whatever it did.
func (c *Cloud) end(m *machine, now time.Time, cause Cause) {
	if !m.Ended.IsZero() {
		return
	}
	m.cancelEvents(false)
	c.halt(m, now)
	c.freeAddress(m)
	c.freeDisks(m.ID)
	c.freeParts(m)
	m.userData = nil
	if c.cfg.End != nil && m.ran {
		i := m.public()
		c.boots.Go(func() { c.cfg.End(c.ctx, i) })
	}
	m.State, m.Ended, m.Cause = cloud.Terminating, now, cause
	c.history = append(c.history, m.Instance)
	c.show(m, now)
	c.log.Debug("an instance has ended", "instance", m.ID, "cell", m.Tags[cloud.TagCell], "cause", cause)
}

// find returns the machine that calls know by an ID, or nil.
func (c *Cloud) find(id string, now time.Time) *machine {
	m := c.byID[id]
	if m == nil || !m.Ended.IsZero() || now.Before(m.known) {
		return nil
	}
	return m
}

// Terminate implements cloud.Cloud. The instances run on for Knobs.Termination.
func (c *Cloud) Terminate(ctx context.Context, ids ...string) cloud.Results {
	ids = slices.Clone(ids)
	err := c.do(ctx, Call{Kind: KindTerminate, IDs: ids}, func(now time.Time) error {
		if err := c.takeResources(KindTerminate, len(ids), now); err != nil {
			return err
		}
		for _, id := range ids {
			if m := c.find(id, now); m != nil {
				c.terminate(m, now)
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("terminate %v: %w", ids, err)
	}
	return cloud.Each(err, ids...)
}

// Tag implements cloud.Tagger. Lists show the tags as late as any other change.
func (c *Cloud) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	ids, tags := make([]string, len(taggings)), make([]map[string]string, len(taggings))
	for n, t := range taggings {
		ids[n], tags[n] = t.ID, maps.Clone(t.Tags)
	}
	results := cloud.Each(nil, ids...)
	err := c.do(ctx, Call{Kind: KindTag, IDs: ids}, func(now time.Time) error {
		if err := c.takeResources(KindTag, len(ids), now); err != nil {
			return err
		}
		for n, id := range ids {
			m := c.find(id, now)
			if m == nil {
				results[n].Err = fmt.Errorf("%w: there is no instance %s: %w", CodeNotFound, id, cloud.ErrNotFound)
				continue
			}
			all := maps.Clone(m.Tags)
			maps.Copy(all, tags[n])
			m.Tags = all // what lists showed before keeps its own
			c.show(m, now)
		}
		return nil
	})
	if err != nil {
		return cloud.Each(fmt.Errorf("tag %v: %w", ids, err), ids...)
	}
	return results
}

func (c *Cloud) terminate(m *machine, now time.Time) {
	if m.State == cloud.Terminating {
		return
	}
	m.terminations++
	r := c.rand("termination", m.ID, m.terminations)
	if happens(r, c.knobs.TerminationLost) {
		c.log.Debug("a termination comes to nothing", "instance", m.ID)
		return
	}
	m.cancelEvents(true)
	m.State = cloud.Terminating
	c.show(m, now)
	c.at(m, now.Add(c.knobs.Termination.draw(r)), false, func(now time.Time) { c.end(m, now, Terminated) })
}

// Stop implements cloud.Stopper. As in EC2, only machines that are Running can
// be stopped, and a spot machine cannot; a refusal is for all that the call
// names.
func (c *Cloud) Stop(ctx context.Context, ids ...string) cloud.Results {
	ids = slices.Clone(ids)
	err := c.do(ctx, Call{Kind: KindStop, IDs: ids}, func(now time.Time) error {
		machines, err := c.findAll(ids, now, func(m *machine) bool { return m.State == cloud.Stopping || m.State == cloud.Stopped },
			func(m *machine) error {
				if m.State != cloud.Running {
					return fmt.Errorf("%w: instance %s is %s", CodeState, m.ID, m.State)
				}
				if m.Spot {
					return fmt.Errorf("%w: instance %s is a spot instance, which cannot be stopped", CodeUnsupported, m.ID)
				}
				return nil
			})
		if err != nil {
			return err
		}
		if err := c.takeResources(KindStop, len(ids), now); err != nil {
			return err
		}
		for _, m := range machines {
			c.stop(m, now)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("stop %v: %w", ids, err)
	}
	return cloud.Each(err, ids...)
}

// findAll returns the machines of a call, each once, without those for which
// nothing is to be done; or why it is refused.
func (c *Cloud) findAll(ids []string, now time.Time, done func(*machine) bool, check func(*machine) error) ([]*machine, error) {
	var found []*machine
	for _, id := range ids {
		m := c.find(id, now)
		if m == nil {
			return nil, fmt.Errorf("%w: %w: there is no instance %s", cloud.ErrRefused, CodeNotFound, id)
		}
		if done(m) || slices.Contains(found, m) {
			continue
		}
		if err := check(m); err != nil {
			return nil, fmt.Errorf("%w: %w", cloud.ErrRefused, err)
		}
		found = append(found, m)
	}
	return found, nil
}

func (c *Cloud) stop(m *machine, now time.Time) {
	m.cancelEvents(true)
	m.State = cloud.Stopping
	c.show(m, now)
	r := c.rand("stop", m.ID, m.starts)
	c.at(m, now.Add(c.knobs.Stopping.draw(r)), true, func(now time.Time) {
		c.halt(m, now)
		if !c.knobs.StoppedKeepsAddresses {
			c.freeAddress(m)
			m.ManagementIP, m.PodIP = netip.Addr{}, netip.Addr{}
		}
		m.State = cloud.Stopped
		c.show(m, now)
	})
}

// Start implements cloud.Stopper. Without capacity, or quota, for all that the
// call names none is started.
func (c *Cloud) Start(ctx context.Context, ids ...string) cloud.Results {
	ids = slices.Clone(ids)
	err := c.do(ctx, Call{Kind: KindStart, IDs: ids}, func(now time.Time) error {
		machines, err := c.findAll(ids, now, func(m *machine) bool { return m.State == cloud.Pending || m.State == cloud.Running },
			func(m *machine) error {
				if m.State != cloud.Stopped {
					return fmt.Errorf("%w: instance %s is %s", CodeState, m.ID, m.State)
				}
				return nil
			})
		if err != nil {
			return err
		}
		if err := c.takeResources(KindStart, len(ids), now); err != nil {
			return err
		}
		if err := c.claim(machines); err != nil {
			return err
		}
		for _, m := range machines {
			c.begin(m, now)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("start %v: %w", ids, err)
	}
	return cloud.Each(err, ids...)
}

// claim says whether there is room for all of the stopped machines at once: it
// lets them take their places one after another, and takes these back.
func (c *Cloud) claim(machines []*machine) error {
	for _, m := range machines {
		if err := c.checkQuotas(m.offering, 1, m.vcpus); err != nil {
			return err
		}
		needsAddress := m.slot == 0
		if n, short := c.room(m.offering, needsAddress); n <= 0 {
			return short
		}
		c.hold(m)
		defer c.release(m)
		if needsAddress {
			c.takeAddress(m)
			defer c.freeAddress(m)
		}
	}
	return nil
}
