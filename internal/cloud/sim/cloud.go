package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

var (
	_ cloud.Cloud       = (*Cloud)(nil)
	_ cloud.Stopper     = (*Cloud)(nil)
	_ cloud.Interrupter = (*Cloud)(nil)
	_ cloud.Disks       = (*Cloud)(nil)
	_ cloud.Tagger      = (*Cloud)(nil)
	_ cloud.Resolver    = (*Cloud)(nil)
)

// Cloud is a simulated cloud. It is safe for concurrent use.
type Cloud struct {
	cfg    Config // but for its Knobs and Catalogue, which are below
	clock  clock.WithDelayedExecution
	log    *slog.Logger
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	boots  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	knobs  Knobs
	shop   *shop
	plan   *addressPlan

	machines []*machine // in the order of their launches, until no list shows them
	byID     map[string]*machine
	ended    map[string]bool // those that no list will show again
	history  []Instance      // those that have ended
	tokens   map[string]*launched

	held      map[offering]*holding // what takes capacity and quota
	addresses map[string]int        // taken of each subnet
	charges   map[chargeKey]*charge

	counts  map[Kind]int
	calls   map[CallKey]int
	planned []planned
	buckets map[bucketKey]*bucket

	notices  []notice
	noticed  int           // notices ever given
	changed  chan struct{} // closed and replaced when there is news for streams
	streams  int           // counts what CutInterruptions ended
	cutCause error

	disks     []*disk                 // in the order of their creation
	routes    map[netip.Prefix]string // to instances, also such as have ended
	disksMade int                     // ever
	torn      []cloud.Disk            // detached while in use

	parts []*cloud.Part
}

type holding struct {
	instances int
	vcpus     int64
}

// New makes a cloud without machines. Close it.
func New(cfg Config) (*Cloud, error) {
	if cfg.Name == "" {
		cfg.Name = "sim"
	}
	if cfg.Traits == nil {
		cfg.Traits = &cloud.Traits{ListLag: 20 * time.Second, Poll: time.Second, Budgets: cfg.RateLimits}
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if !cfg.ManagementCIDR.IsValid() {
		cfg.ManagementCIDR = netip.MustParsePrefix("127.64.0.0/10")
	}
	if !cfg.PodCIDR.IsValid() {
		cfg.PodCIDR = netip.MustParsePrefix("10.64.0.0/10")
	}
	plan, err := newAddressPlan(cfg.ManagementCIDR, cfg.PodCIDR, cfg.ReuseAddresses)
	if cfg.LikeEC2 && err == nil {
		plan.first, plan.last = 4, 3
	}
	if err != nil {
		return nil, fmt.Errorf("make a simulated cloud: %w", err)
	}
	if err := cfg.Knobs.validate(); err != nil {
		return nil, fmt.Errorf("make a simulated cloud: %w", err)
	}
	shop, err := newShop(cfg.Catalogue)
	if err != nil {
		return nil, fmt.Errorf("make a simulated cloud: %w", err)
	}
	c := &Cloud{
		cfg:       cfg,
		clock:     cfg.Clock,
		log:       cfg.Log,
		knobs:     cfg.Knobs.clone(),
		shop:      shop,
		plan:      plan,
		byID:      map[string]*machine{},
		routes:    map[netip.Prefix]string{},
		ended:     map[string]bool{},
		tokens:    map[string]*launched{},
		held:      map[offering]*holding{},
		addresses: map[string]int{},
		charges:   map[chargeKey]*charge{},
		counts:    map[Kind]int{},
		calls:     map[CallKey]int{},
		buckets:   map[bucketKey]*bucket{},
		changed:   make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// Close ends everything that runs, and returns when it has. Calls under way fail
// and later ones too; Truth, History, Bill and Calls tell what was. Its error is
// always nil.
func (c *Cloud) Close() error {
	c.mu.Lock()
	c.closed = true
	for _, m := range c.machines {
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
	c.tellStreams()
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
	s, err := newShop(types)
	if err != nil {
		return fmt.Errorf("change the simulated cloud: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shop = s
	return nil
}

// Name implements cloud.Cloud.
func (c *Cloud) Name() string { return c.cfg.Name }

// Traits implements cloud.Cloud.
func (c *Cloud) Traits() cloud.Traits {
	traits := *c.cfg.Traits
	traits.SharedUserData = traits.SharedUserData || c.cfg.SharedUserData
	return traits
}

// Features implements cloud.Cloud.
func (c *Cloud) Features() cloud.Features {
	f := cloud.Features{
		Stopper:     c,
		Interrupter: c,
		Disks:       c,
		Router:      c,
		DiskGrower:  c,
		Parts:       c,
		Tagger:      c,
	}
	if c.cfg.Resolves {
		f.Resolver = c
	}
	return f
}

// Catalogue implements cloud.Cloud.
func (c *Cloud) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	var types []catalog.InstanceType
	err := c.do(ctx, Call{Kind: KindCatalogue}, func(time.Time) error {
		types = slices.Clone(c.shop.types)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalogue of %s: %w", c.cfg.Name, err)
	}
	return types, nil
}

// List implements cloud.Cloud. It is as late as Knobs.ListLag and
// Knobs.StaleLists make it.
func (c *Cloud) List(ctx context.Context, owner string) (cloud.Listing, error) {
	var list cloud.Listing
	err := c.do(ctx, Call{Kind: KindList, Owner: owner}, func(now time.Time) error {
		if owner == "" {
			return fmt.Errorf("%w: owner is empty: want the value of tag %s", cloud.ErrRefused, cloud.TagOwner)
		}
		asOf := now
		if happens(c.rand("stale list", "", c.counts[KindList]), c.knobs.StaleLists) {
			asOf = now.Add(-c.knobs.StaleBy)
		}
		c.forget(now)
		list = cloud.Listing{Missing: slices.Clone(c.knobs.BlindZones), Silent: slices.Clone(c.knobs.BlindZones)}
		for _, m := range c.machines {
			if m.Tags[cloud.TagOwner] != owner || !list.Covers(m.Zone) {
				continue
			}
			if v := m.seen(asOf); v != nil && !v.gone {
				list.Instances = append(list.Instances, clone(v.instance))
			}
		}
		return nil
	})
	if err != nil {
		return cloud.Listing{}, fmt.Errorf("list the instances of %s in %s: %w", owner, c.cfg.Name, err)
	}
	return list, nil
}

// Describe implements cloud.Cloud. It is as late as Knobs.ListLag makes it, and
// knows a machine for good once a list has shown it.
func (c *Cloud) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	ids = slices.Clone(ids)
	var answer []cloud.Instance
	err := c.do(ctx, Call{Kind: KindDescribe, IDs: ids}, func(now time.Time) error {
		answer = nil
		for _, id := range ids {
			answer = append(answer, c.describe(id, now))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("describe %v: %w", ids, err)
	}
	return answer, nil
}

func (c *Cloud) describe(id string, now time.Time) cloud.Instance {
	if c.ended[id] {
		return cloud.Instance{ID: id, State: cloud.Gone}
	}
	m := c.byID[id]
	switch {
	case m == nil || now.Before(m.known):
		return cloud.Instance{ID: id, State: cloud.Unknown}
	case slices.Contains(c.knobs.BlindZones, m.Zone):
		return cloud.Instance{ID: id}
	}
	switch v := m.seen(now); {
	case v == nil:
		return cloud.Instance{ID: id, State: cloud.Unknown}
	case v.gone:
		return cloud.Instance{ID: id, State: cloud.Gone}
	default:
		return clone(v.instance)
	}
}

// forget drops the machines that no list will show again.
func (c *Cloud) forget(now time.Time) {
	c.machines = slices.DeleteFunc(c.machines, func(m *machine) bool {
		last := m.views[len(m.views)-1]
		if !last.gone || last.from.Add(c.knobs.StaleBy).After(now) {
			return false
		}
		delete(c.byID, m.ID)
		c.ended[m.ID] = true
		return true
	})
}

// addressPlan gives each machine an offset in two networks.
type addressPlan struct {
	management, pod netip.Addr // the networks' own
	first, size     int        // offsets are from first to size
	reuse           bool
	taken           map[int]bool
	last            int
	freed           []int // where reuse is wanted
}

func newAddressPlan(management, pod netip.Prefix, reuse bool) (*addressPlan, error) {
	p := &addressPlan{
		management: management.Masked().Addr(),
		pod:        pod.Masked().Addr(),
		first:      1,
		reuse:      reuse,
		taken:      map[int]bool{},
	}
	bits := 24 // more offsets than any simulation needs
	for field, cidr := range map[string]netip.Prefix{"ManagementCIDR": management, "PodCIDR": pod} {
		if !cidr.Addr().Is4() || cidr.Bits() > 30 {
			return nil, fmt.Errorf("%s is %s: want an IPv4 network of /30 or larger", field, cidr)
		}
		bits = min(bits, 32-cidr.Bits())
	}
	p.size = 1<<bits - 2 // neither the network's own address nor the broadcast address
	return p, nil
}

func (p *addressPlan) free() int { return p.size - p.first + 1 - len(p.taken) }

// take returns an offset; there must be a free one.
func (p *addressPlan) take() int {
	if n := len(p.freed); n > 0 {
		slot := p.freed[n-1]
		p.freed = p.freed[:n-1]
		p.taken[slot] = true
		return slot
	}
	for {
		if p.last++; p.last > p.size {
			p.last = p.first
		}
		if !p.taken[p.last] {
			p.taken[p.last] = true
			return p.last
		}
	}
}

func (p *addressPlan) giveBack(slot int) {
	delete(p.taken, slot)
	if p.reuse {
		p.freed = append(p.freed, slot)
	}
}

func (p *addressPlan) at(slot int) (management, pod netip.Addr) {
	return plus(p.management, slot), plus(p.pod, slot)
}

func plus(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}
