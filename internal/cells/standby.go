package cells

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

// Pool is a number of cells of one kind that are kept ready for the next pods.
type Pool struct {
	Name  string
	Count int
	// Stopped keeps them stopped, where the cloud can: they cost a disk each,
	// and a boot when they are taken.
	Stopped bool
	// Offers returns what can be launched for it now, best first, or why
	// nothing can.
	Offers func() ([]Offer, error)
}

// pool is a Pool and how it fares.
type pool struct {
	Pool
	failures int       // cells in a row that did not become ready
	until    time.Time // none is made before
	why      string    // what was last reported
}

const (
	// poolCheck is how often pools are looked at when nothing asks for it.
	poolCheck = 5 * time.Second
	// longestPoolBackoff bounds the wait after standby cells that failed.
	longestPoolBackoff = 5 * time.Minute
)

// fits says that a standby cell is as good for the request as a new one.
func (r Request) fits(cell *Cell) bool {
	best, has := r.Offers[0], cell.Offer()
	if r.Special || has.InstanceType != best.InstanceType || has.Spot != best.Spot || has.DiskBytes != best.DiskBytes {
		return false
	}
	return slices.ContainsFunc(r.Offers, func(o Offer) bool { return o.offering() == has.offering() })
}

// takeStandby promises a standby cell that fits to a pod: the one that is ready,
// else the one that will be soonest. The caller holds mu.
func (c *Controller) takeStandby(r Request) *entry {
	if len(c.pools) == 0 {
		return nil
	}
	rank := func(cell *Cell) int {
		switch {
		case cell.Phase == apiv1.Ready && !cell.Stopped:
			return 2
		case cell.Phase == apiv1.Ready:
			return 1
		}
		return 0 // the pod would wait for a boot that may fail
	}
	var best *entry
	for _, e := range c.standby {
		cell := e.cell()
		if e.ending != "" || !cell.Interrupted.IsZero() || rank(cell) == 0 || !r.fits(cell) {
			continue
		}
		if rank(cell) == 2 && (e.session == nil || !e.session.Connected()) {
			continue // it may be lost
		}
		if best == nil || rank(cell) > rank(best.cell()) || cell.Template == c.cfg.Template && best.cell().Template != c.cfg.Template {
			best = e
		}
	}
	if best == nil {
		return nil
	}
	delete(c.standby, best.id)
	best.pod, best.disks = r.Pod, r.Disks
	c.reserve(best)
	if p := c.pools[best.cell().Standby]; p != nil {
		if until := c.cfg.Clock.Now().Add(c.cfg.RefillDelay); until.After(p.until) {
			p.until = until
		}
	}
	return best
}

// give stores that a standby cell is a pod's.
func (c *Controller) give(ctx context.Context, e *entry, r Request) (Cell, error) {
	c.refillSoon()
	err := c.save(ctx, e, func(cell *Cell) error {
		if cell.Phase != apiv1.Ready {
			return fmt.Errorf("standby cell %s is %s", cell.ID, cell.Phase)
		}
		cell.Pod, cell.Attempt, cell.HealthyTimeout, cell.Disks, cell.Plugins = r.Pod, r.Attempt, r.HealthyTimeout, r.Disks, r.Plugins
		cell.Reason = "a standby cell of " + cell.Standby + ": " + r.Offers[0].Reason
		cell.step(apiv1.StepSeen, r.Seen)
		cell.step(apiv1.StepPlaced, c.cfg.Clock.Now())
		return nil
	})
	if err != nil {
		// Whatever is stored, the cell ends. Where that is not known, it is the
		// pod's until it is gone.
		e.writing.Lock()
		c.mu.Lock()
		if e.unsure == nil {
			c.unreserve(e)
			e.pod = apiv1.PodReference{}
		}
		if e.ending == "" {
			e.ending = "it could not be given to pod " + r.Pod.String()
		}
		c.mu.Unlock()
		e.writing.Unlock()
		if refusedWrite(err) {
			c.fail(err)
		}
		c.queue.Add(e.id)
		return Cell{}, fmt.Errorf("give standby cell %s to pod %s: %w", e.id, r.Pod, err)
	}
	c.queue.Add(e.id)
	return *e.cell(), nil
}

// idle is what a standby cell does until it is taken.
func (c *Controller) idle(ctx context.Context, e *entry) (time.Duration, error) {
	if c.stops(e.cell()) {
		return c.stop(ctx, e)
	}
	if !e.session.Connected() {
		c.pollSoon() // is the machine still there?
		return silentPoll, nil
	}
	return 0, nil
}

// refillSoon asks for a look at the pools.
func (c *Controller) refillSoon() {
	select {
	case c.refill <- struct{}{}:
	default:
	}
}

// fillPools keeps the standby pools full until ctx ends.
func (c *Controller) fillPools(ctx context.Context) {
	for {
		c.fill(ctx)
		timer := c.cfg.Clock.NewTimer(c.nextFill())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-c.refill:
			timer.Stop()
		}
	}
}

// nextFill is the time until the pools are to be looked at again, unasked.
func (c *Controller) nextFill() time.Duration {
	now, next := c.cfg.Clock.Now(), poolCheck
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pools {
		if wait := p.until.Sub(now); wait > 0 {
			next = min(next, wait)
		}
	}
	return next
}

// fill makes what the pools lack and ends what they have too many of. It is the
// only place that does, so that no burst makes more than are wanted.
func (c *Controller) fill(ctx context.Context) {
	var surplus []*entry
	lacking := map[string]int{}
	c.mu.Lock()
	current, outdated := map[string][]*entry{}, map[string][]*entry{}
	ready := map[string]int{}
	for _, e := range c.standby {
		cell := e.cell()
		if e.ending != "" || !cell.Live() {
			continue
		}
		switch p := c.pools[cell.Standby]; {
		case p == nil: // no longer wanted
			surplus = append(surplus, e)
		case cell.Template != c.cfg.Template:
			outdated[cell.Standby] = append(outdated[cell.Standby], e)
		default:
			current[cell.Standby] = append(current[cell.Standby], e)
			if cell.Phase == apiv1.Ready {
				ready[cell.Standby]++
			}
		}
	}
	for name, p := range c.pools {
		n := len(current[name])
		if n > p.Count {
			// The youngest of their boot are the least loss.
			slices.SortFunc(current[name], func(a, b *entry) int {
				return b.cell().StepTime(apiv1.StepPlaced).Compare(a.cell().StepTime(apiv1.StepPlaced))
			})
			surplus = append(surplus, current[name][:n-p.Count]...)
		}
		lacking[name] = p.Count - n
		// The old go one by one as the new become ready, never before.
		if old := outdated[name]; len(old) > 0 {
			surplus = append(surplus, old[:min(len(old), max(0, ready[name]+len(old)-p.Count))]...)
		}
	}
	for _, e := range surplus {
		e.ending, e.cause = "its standby pool does not want it any more", CauseStandbyRetired
		c.queue.Add(e.id)
	}
	c.mu.Unlock()
	for name, n := range lacking {
		if n > 0 {
			c.makeStandby(ctx, c.pools[name], n)
		}
	}
}

// makeStandby requests n cells for a pool.
func (c *Controller) makeStandby(ctx context.Context, p *pool, n int) {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	wait := now.Before(p.until)
	c.mu.Unlock()
	if wait {
		return
	}
	offers, err := p.Offers()
	for range n {
		if err != nil || ctx.Err() != nil {
			break
		}
		cell := Cell{ID: newID("cell-"), Phase: apiv1.Requested, Standby: p.Name, Template: c.cfg.Template, Offers: offers, Reason: "standby pool " + p.Name}
		cell.step(apiv1.StepPlaced, now)
		e := newEntry(cell, 0)
		c.mu.Lock()
		c.reserve(e)
		c.mu.Unlock()
		err = c.store(ctx, e)
	}
	why := ""
	if err != nil {
		why = err.Error()
	}
	c.mu.Lock()
	changed := p.why != why
	p.why = why
	c.mu.Unlock()
	if changed && why != "" {
		c.cfg.Log.Warn("a standby pool cannot be filled", "standby", p.Name, "err", why)
	}
}

// countStandby counts standby cells that were gone before they were ready, so
// that a pool that cannot work does not launch for ever at full speed. The caller
// holds mu.
func (c *Controller) countStandby(gone Cell) {
	p := c.pools[gone.Standby]
	switch {
	case p == nil:
	case !gone.StepTime(apiv1.StepReady).IsZero():
		p.failures = 0
	default:
		p.failures++
		p.until = c.cfg.Clock.Now().Add(min(time.Second<<min(p.failures-1, 30), longestPoolBackoff))
	}
}

// EmptyPools ends the standby cells and makes no others, until the process ends.
func (c *Controller) EmptyPools() {
	c.mu.Lock()
	for _, p := range c.pools {
		p.Count, p.why = 0, ""
	}
	c.mu.Unlock()
	c.refillSoon()
}

// StandbyState is how a pool fares.
type StandbyState struct {
	Name                 string
	Want, Ready, Booting int
	// Why says why it is not full; empty when it only takes time.
	Why string
}

// Standby returns the pools' states, in order of name.
func (c *Controller) Standby() []StandbyState {
	c.mu.Lock()
	defer c.mu.Unlock()
	states := map[string]*StandbyState{}
	var list []StandbyState
	for name, p := range c.pools {
		states[name] = &StandbyState{Name: name, Want: p.Count, Why: p.why}
	}
	for _, e := range c.standby {
		cell := e.cell()
		s := states[cell.Standby]
		switch {
		case s == nil || e.ending != "":
		case cell.Phase == apiv1.Ready:
			s.Ready++
		case cell.Live():
			s.Booting++
		}
	}
	for _, s := range states {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b StandbyState) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// stops says that an idle standby cell is to be stopped.
func (c *Controller) stops(cell *Cell) bool {
	_, can := c.cfg.Cloud.(cloud.Stopper)
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[cell.Standby]
	return can && p != nil && p.Stopped && cell.Pod.UID == ""
}

// stop begins to stop the instance of an idle standby cell.
func (c *Controller) stop(ctx context.Context, e *entry) (time.Duration, error) {
	now := c.cfg.Clock.Now()
	if err := c.save(ctx, e, func(cell *Cell) error {
		if cell.Pod.UID != types.UID("") {
			return fmt.Errorf("standby cell %s was taken", cell.ID)
		}
		cell.BilledSeconds = cell.cost(now).Seconds
		cell.Stopped = true
		return nil
	}); err != nil {
		return 0, err
	}
	return c.stopOrStart(ctx, e)
}

// stopOrStart moves a stopped cell's instance to where it should be: stopped, or
// running again for the pod that took it.
func (c *Controller) stopOrStart(ctx context.Context, e *entry) (time.Duration, error) {
	machines, id := c.cfg.Cloud.(cloud.Stopper), e.cell().Instance.ID
	c.disconnect(e)
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	look := c.lastLook()
	if e.cell().Pod.UID == "" {
		if i, there := look.byID[id]; there && i.State == cloud.Stopped {
			if e.cell().Instance.State != cloud.Stopped {
				return 0, c.save(ctx, e, func(cell *Cell) error { cell.Instance.State = cloud.Stopped; return nil })
			}
			return 0, nil
		}
		c.pollSoon()
		return time.Second, machines.Stop(call, id)
	}
	if err := machines.Start(call, id); err != nil {
		c.lose(e, fmt.Sprintf("its instance could not be started: %v", err))
		return 0, nil
	}
	return 0, c.save(ctx, e, func(cell *Cell) error {
		cell.Stopped = false
		cell.Instance.State, cell.Instance.Launched = cloud.Running, c.cfg.Clock.Now()
		cell.Instance.ManagementIP, cell.Instance.PodIP = netip.Addr{}, netip.Addr{} // they may have changed
		cell.Instance.ManagementIPv6, cell.Instance.PodIPv6 = netip.Addr{}, netip.Addr{}
		return cell.enter(apiv1.Booting)
	})
}
