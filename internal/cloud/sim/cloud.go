package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

var (
	_ cloud.Cloud          = (*Cloud)(nil)
	_ cloud.Stopper        = (*stopping)(nil)
	_ cloud.Interrupter    = (*interruptions)(nil)
	_ cloud.Disks          = (*disks)(nil)
	_ cloud.DiskGrower     = (*disks)(nil)
	_ cloud.Router         = (*routes)(nil)
	_ cloud.OwnedResources = (*ownedResources)(nil)
	_ cloud.Tagger         = (*tagging)(nil)
	_ cloud.Resolver       = (*catalogues)(nil)
)

// Cloud is a simulated cloud. It is safe for concurrent use. Each area of it is a struct with the few others that it depends on,
// in a file of its own.
type Cloud struct {
	*base

	*calls
	*machines
	*lists
	*catalogues
	*launches
	*terminations
	*bills

	// What it can do besides, by the names of cloud.Optional, and what was done of that.
	Stopper        *stopping
	Interrupter    *interruptions
	Tagger         *tagging
	Disks          *disks
	OwnedResources *ownedResources
	Router         *routes

	holdings *holdings
}

// New makes a cloud without machines. Close it.
func New(cfg Config) (*Cloud, error) {
	cfg.setDefaults()
	plan, err := newAddressPlan(cfg.ManagementCIDR, cfg.PodCIDR, cfg.ReuseAddresses)
	if err != nil {
		return nil, fmt.Errorf("make a simulated cloud: %w", err)
	}
	if cfg.LikeEC2 {
		plan.first, plan.last = 4, 3
	}
	if err := cfg.Knobs.validate(); err != nil {
		return nil, fmt.Errorf("make a simulated cloud: %w", err)
	}
	offered, err := newOffered(cfg.Catalogue)
	if err != nil {
		return nil, fmt.Errorf("make a simulated cloud: %w", err)
	}
	b := &base{
		cfg:     cfg,
		clock:   cfg.Clock,
		log:     cfg.Log,
		knobs:   cfg.Knobs.clone(),
		offered: offered,
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return wire(b, plan), nil
}

// wire makes the areas, each of those that it depends on.
func wire(b *base, plan *addressPlan) *Cloud {
	c := &Cloud{base: b}
	c.calls = &calls{base: b, counts: map[Kind]int{}, outcomes: map[CallKey]int{}, buckets: map[bucketKey]*bucket{}}
	c.machines = &machines{base: b, byID: map[string]*machine{}, ended: map[string]bool{}}
	c.lists = &lists{base: b, calls: c.calls, machines: c.machines}
	c.catalogues = &catalogues{base: b, calls: c.calls}
	c.holdings = &holdings{base: b, held: map[offering]*holding{}, addresses: map[string]int{}, plan: plan}
	c.Disks = &disks{base: b, calls: c.calls, machines: c.machines}
	c.OwnedResources = &ownedResources{base: b, calls: c.calls}
	c.Router = &routes{base: b, calls: c.calls, machines: c.machines, byPrefix: map[netip.Prefix]string{}}
	charges := &charges{base: b, byKey: map[chargeKey]*charge{}}
	c.bills = &bills{base: b, charges: charges, machines: c.machines}
	courses := &courses{base: b, machines: c.machines, holdings: c.holdings, disks: c.Disks, ownedResources: c.OwnedResources}
	c.terminations = &terminations{base: b, calls: c.calls, machines: c.machines, courses: courses}
	c.Stopper = &stopping{base: b, calls: c.calls, machines: c.machines, holdings: c.holdings, courses: courses}
	c.Tagger = &tagging{base: b, calls: c.calls, machines: c.machines, courses: courses}
	c.Interrupter = &interruptions{
		base:     b,
		calls:    c.calls,
		machines: c.machines,
		courses:  courses,
		changed:  make(chan struct{}),
	}
	c.launches = &launches{
		base:          b,
		calls:         c.calls,
		machines:      c.machines,
		holdings:      c.holdings,
		charges:       charges,
		courses:       courses,
		interruptions: c.Interrupter,
		tokens:        map[string]*launched{},
	}
	return c
}

// Close ends everything that runs, and returns when it has. Calls under way fail
// and later ones too; Truth, History, Bill and Calls tell what was. Its error is
// always nil.
func (c *Cloud) Close() error {
	c.mu.Lock()
	c.closed = true
	for _, m := range c.machines.all {
		m.cancelEvents(false)
	}
	c.mu.Unlock()
	c.cancel()
	c.boots.Wait()
	return nil
}

// Change changes the knobs. An error leaves them as they were.
func (c *Cloud) Change(change func(*Knobs)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.knobs.clone()
	change(&k)
	if err := k.validate(); err != nil {
		return fmt.Errorf("change the simulated cloud: %w", err)
	}
	c.knobs = k.clone()
	c.Interrupter.tellStreams()
	return nil
}

// SetCapacity bounds the machines of a pool, and lifts its bound if instances is
// negative.
func (c *Cloud) SetCapacity(p Pool, instances int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.knobs.Capacity = slices.DeleteFunc(c.knobs.Capacity, func(q Capacity) bool { return q.equals(p) })
	if instances >= 0 {
		c.knobs.Capacity = append(c.knobs.Capacity, Capacity{p, instances})
	}
}

// SetCatalogue changes what is for sale and at what price. Machines that run go
// on at the price they were launched at.
func (c *Cloud) SetCatalogue(types []catalog.InstanceType) error {
	s, err := newOffered(types)
	if err != nil {
		return fmt.Errorf("change the simulated cloud: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offered = s
	return nil
}

// Optional implements cloud.Cloud.
func (c *Cloud) Optional() cloud.Optional {
	f := cloud.Optional{
		Stopper:        c.Stopper,
		Interrupter:    c.Interrupter,
		Disks:          c.Disks,
		Router:         c.Router,
		DiskGrower:     c.Disks,
		OwnedResources: c.OwnedResources,
		Tagger:         c.Tagger,
	}
	if c.cfg.Resolves {
		f.Resolver = c.catalogues
	}
	return f
}
