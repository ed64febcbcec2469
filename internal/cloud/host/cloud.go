package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

var (
	_ cloud.Cloud       = (*Cloud)(nil)
	_ cloud.Stopper     = (*Cloud)(nil)
	_ cloud.Interrupter = (*Cloud)(nil)
	_ cloud.Disks       = (*Cloud)(nil)
	_ cloud.DiskGrower  = (*Cloud)(nil)
	_ cloud.Console     = (*Cloud)(nil)
	_ cloud.Bounder     = (*Cloud)(nil)
	_ cloud.Owners      = (*Cloud)(nil)
)

// Cloud launches and ends machines on this host. One process at a time has the
// Cloud of a state folder.
type Cloud struct {
	cfg     Config
	kind    Kind
	network network
	bridge  int // the device's index
	unlock  func()

	// ctx ends with Close; it bounds the goroutines that own machines.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	machines map[string]*machine // by instance ID
	tokens   map[string]*machine
	lastSlot uint32
	consoles []ended // what the machines that ended last had written
}

// machine is one machine from its record's first line to its last. Cloud.mu
// guards what can change: rec, settled, err and process.
//
//	Pending ⇄ Stopped ← Stopping
//	   ↓                   ↑
//	Running ───────────────┘     and from each of them: Terminating
type machine struct {
	id  string
	rec record
	// settled is open while the machine is Pending or Stopping.
	settled chan struct{}
	err     error // of the launch
	// gone is closed when nothing of the machine is left.
	gone chan struct{}
	// process is set while the machine runs.
	process *Handle
}

// instance is a copy for callers, who may do with it what they like.
func (m *machine) instance() cloud.Instance {
	i := m.rec.Instance
	i.Tags = maps.Clone(i.Tags)
	return i
}

// settle tells who waits that the machine is Pending or Stopping no more. The
// caller holds Cloud.mu.
func (m *machine) settle() {
	select {
	case <-m.settled:
	default:
		close(m.settled)
	}
}

// New opens the cloud in cfg.StateDir: it adopts the machines that run, stops
// those that were being stopped or started, and removes what is left of those
// that ended, half-made ones included, so that their tokens launch afresh. It
// fails with ErrInUse if another process has it.
func New(cfg Config, kind Kind) (_ *Cloud, err error) {
	if cfg, err = cfg.WithDefaults(); err != nil {
		return nil, fmt.Errorf("%s cloud: %w", kind.Name(), err)
	}
	if err := MustBeRoot(); err != nil {
		return nil, fmt.Errorf("%s cloud: %w", kind.Name(), err)
	}
	unlock, err := lock(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s cloud: %w", kind.Name(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Cloud{
		cfg:      cfg,
		kind:     kind,
		network:  network{cfg.CIDR},
		unlock:   unlock,
		ctx:      ctx,
		cancel:   cancel,
		machines: map[string]*machine{},
		tokens:   map[string]*machine{},
	}
	if c.bridge, err = ensureBridge(ctx, cfg); err == nil {
		err = c.recover()
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("%s cloud: %w", kind.Name(), err)
	}
	return c, nil
}

// recover takes up what the state folder holds, and traces of machines whose
// folder was deleted under them.
func (c *Cloud) recover() error {
	all, err := readAll(c.cfg)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, s := range all {
		known[s.id] = true
	}
	for _, id := range c.kind.Traces() {
		if !known[id] && instanceID.MatchString(id) {
			all = append(all, stored{id: id, err: errNoRecord})
		}
	}
	if err := recoverDisks(c.ctx, c.cfg, c.kind, func(id string) bool {
		return slices.ContainsFunc(all, func(s stored) bool { return s.id == id })
	}); err != nil {
		return err
	}
	var recovering []*machine
	for _, s := range all {
		m := &machine{
			id:      s.id,
			rec:     s.rec,
			settled: make(chan struct{}),
			gone:    make(chan struct{}),
		}
		if s.err != nil {
			c.cfg.Log.Warn("a machine's record cannot be read; removing the machine", "instance", s.id, "err", s.err)
			m.rec = record{Instance: cloud.Instance{ID: s.id}}
		}
		state := &m.rec.Instance.State
		_, shutter := c.kind.(Shutter)
		if *state == cloud.Running || *state == cloud.Stopping && shutter {
			m.process, err = m.rec.Process.Open()
			if err != nil && !errors.Is(err, ErrGone) {
				return err
			}
		}
		c.mu.Lock()
		c.machines[s.id] = m
		c.lastSlot = max(c.lastSlot, m.rec.Slot)
		switch {
		case m.process != nil && *state == cloud.Stopping:
			c.tokens[m.rec.Token] = m
			c.shut(m)
		case m.process != nil:
			m.settle()
			c.tokens[m.rec.Token] = m
		case *state == cloud.Stopped || *state == cloud.Stopping:
			// Stopped by its record it may still have begun to start.
			*state = cloud.Stopping
			c.tokens[m.rec.Token] = m
			recovering = append(recovering, m)
		default:
			c.cfg.Log.Info("removing a machine that does not run", "instance", s.id, "state", *state)
			*state = cloud.Terminating
			recovering = append(recovering, m)
		}
		c.mu.Unlock()
		c.wg.Go(func() { c.own(m) })
	}
	// Nothing of a half-made machine is left when New returns, or else,
	// should the kernel not let go of it, soon after.
	timeout := c.cfg.Clock.After(5 * time.Second)
	for _, m := range recovering {
		select {
		case <-m.settled:
		case <-timeout:
			return nil
		}
	}
	return nil
}

var errNoRecord = errors.New("its folder is missing")

// Close stops watching and lets go of the state folder; it ends no machine. Its
// error is always nil.
func (c *Cloud) Close() error {
	c.mu.Lock()
	done := c.closed
	c.closed = true
	c.mu.Unlock()
	if done {
		return nil
	}
	c.cancel()
	c.wg.Wait()
	c.unlock()
	return nil
}

// Name is that of the kind.
func (c *Cloud) Name() string { return c.kind.Name() }

// Capabilities say that the list costs nothing and never lags, and that all machines are
// on the processors of one host: the pod that took a standby cell starts first,
// within some 1.5 s.
func (c *Cloud) Capabilities() cloud.Capabilities {
	return cloud.Capabilities{
		Poll:         50 * time.Millisecond,
		RefillDelay:  2 * time.Second,
		IPv6:         c.cfg.IPv6CIDR.IsValid(),
		SharedKernel: c.cfg.SharedKernel,
	}
}

// Optional are stopping, rehearsed interruptions, disks, and the bounds of the host.
func (c *Cloud) Optional() cloud.Optional {
	return cloud.Optional{
		Stopper:     c,
		Interrupter: c,
		Disks:       c,
		DiskGrower:  c,
		Console:     c,
		Bounder:     c,
		Owners:      c,
	}
}

// Bounds returns what the host has: its machines share that. They may be promised more, and are by a capacity in numbers.
func (c *Cloud) Bounds(context.Context, string) (catalog.Bounds, error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return catalog.Bounds{}, fmt.Errorf("read how much memory the host has: %w", err)
	}
	bounds := catalog.Bounds{MilliCPU: map[catalog.Class]int64{}, MemoryBytes: int64(host.Totalram) * int64(host.Unit)}
	for _, t := range c.cfg.Catalogue {
		bounds.MilliCPU[catalog.Class{Family: t.Family}] = int64(CPUs()) * 1000
	}
	return bounds, nil
}

// Catalogue returns the configured instance types.
func (c *Cloud) Catalogue(context.Context) ([]catalog.InstanceType, error) {
	return c.cfg.Catalogue, nil
}

// ListOwners returns whose machines and disks there are.
func (c *Cloud) ListOwners(ctx context.Context) ([]cloud.Owner, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var machines []cloud.Instance
	c.mu.Lock()
	for _, m := range c.machines {
		machines = append(machines, m.instance())
	}
	c.mu.Unlock()
	slices.SortFunc(machines, func(a, b cloud.Instance) int { return strings.Compare(a.ID, b.ID) })
	c.cfg.disks.Lock()
	defer c.cfg.disks.Unlock()
	records, err := c.cfg.readDisks()
	if err != nil {
		return nil, err
	}
	var disks []cloud.Disk
	for _, r := range records {
		disks = append(disks, r.Disk)
	}
	return cloud.ByOwner(machines, nil, disks), nil
}

// List returns the owner's machines. A machine whose init has ended is removed
// at once, as a cloud's instance that vanished.
func (c *Cloud) List(ctx context.Context, owner string) (cloud.Listing, error) {
	if err := ctx.Err(); err != nil {
		return cloud.Listing{}, err
	}
	c.mu.Lock()
	var list []cloud.Instance
	for _, m := range c.machines {
		if m.rec.Instance.Tags[cloud.TagOwner] == owner {
			list = append(list, m.instance())
		}
	}
	c.mu.Unlock()
	slices.SortFunc(list, func(a, b cloud.Instance) int { return strings.Compare(a.ID, b.ID) })
	for _, i := range list {
		paths := []string{c.cfg.consolePath(i.ID)}
		for _, name := range c.kind.Logs() {
			paths = append(paths, filepath.Join(c.cfg.MachineDir(i.ID), name))
		}
		for _, path := range paths {
			if err := boundConsole(path); err != nil {
				c.cfg.Log.WarnContext(ctx, "cannot shorten a log", "instance", i.ID, "file", filepath.Base(path), "err", err)
			}
		}
	}
	return cloud.Listing{Instances: list}, nil
}

// Describe knows every machine of the state folder: the record of one is the last
// thing to go, so that what has none is gone.
func (c *Cloud) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	answer := make([]cloud.Instance, len(ids))
	for n, id := range ids {
		if m := c.machines[id]; m != nil {
			answer[n] = m.instance()
		} else {
			answer[n] = cloud.Instance{ID: id, State: cloud.Gone}
		}
	}
	return answer, nil
}

// Terminate ends the machines and returns when nothing is left of them. When
// ctx ends first, the work goes on.
func (c *Cloud) Terminate(ctx context.Context, ids ...string) cloud.Results {
	results := make(cloud.Results, len(ids))
	waiting := make([]*machine, len(ids))
	for n, id := range ids {
		results[n].ID = id
		c.mu.Lock()
		m := c.machines[id]
		c.mu.Unlock()
		if m == nil {
			continue
		}
		if err := c.unless(ctx, m, []cloud.State{cloud.Pending}, func() error { return c.terminate(m) }); err != nil {
			results[n].Err = fmt.Errorf("terminate %s: %w", id, err)
			continue
		}
		waiting[n] = m
	}
	for n, m := range waiting {
		if m == nil {
			continue
		}
		select {
		case <-m.gone:
		case <-c.ctx.Done():
			results[n].Err = errClosed
		case <-ctx.Done():
			results[n].Err = fmt.Errorf("terminate %s: %w", m.id, ctx.Err())
		}
	}
	return results
}

// Gone returns what is closed when nothing of a machine is left; closed already for one
// that is not there.
func (c *Cloud) Gone(id string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.machines[id]; m != nil {
		return m.gone
	}
	gone := make(chan struct{})
	close(gone)
	return gone
}

var errClosed = errors.New("the cloud of this host is closed")

// unless waits until the machine is in none of the states, which are some of
// Pending and Stopping, and then runs f with mu held.
func (c *Cloud) unless(ctx context.Context, m *machine, states []cloud.State, f func() error) error {
	for {
		c.mu.Lock()
		if !slices.Contains(states, m.rec.Instance.State) {
			defer c.mu.Unlock()
			return f()
		}
		settled := m.settled
		c.mu.Unlock()
		select {
		case <-settled:
		case <-c.ctx.Done():
			return errClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// enter puts the machine into a state in which it ends, or stops, first in its
// record. The caller holds mu.
func (c *Cloud) enter(m *machine, s cloud.State) error {
	if c.closed {
		return errClosed
	}
	rec := m.rec
	rec.Instance.State = s
	if err := rec.write(c.cfg.MachineDir(m.id)); err != nil {
		return err
	}
	m.rec = rec
	return nil
}

// terminate begins a machine's end. The caller holds mu.
func (c *Cloud) terminate(m *machine) error {
	was := m.rec.Instance.State
	if was == cloud.Terminating {
		return nil
	}
	if err := c.enter(m, cloud.Terminating); err != nil {
		return err
	}
	c.cfg.Reached("terminating")
	switch was {
	case cloud.Running:
		return c.kind.Kill(m.id, m.process)
	case cloud.Stopping:
		if m.process != nil { // it need not end by itself any more
			return c.kind.Kill(m.id, m.process)
		}
	case cloud.Stopped:
		c.wg.Go(func() { c.own(m) })
	}
	return nil // while it stops, it has its goroutine
}

// own is the goroutine that a machine has from a boot to its end, or until it
// is stopped.
func (c *Cloud) own(m *machine) {
	c.mu.Lock()
	p := m.process
	c.mu.Unlock()
	if p == nil {
		c.end(m)
		return
	}
	log := c.cfg.Log.With("instance", m.id)
	how, err := p.Wait(c.ctx)
	if c.ctx.Err() != nil {
		p.Close()
		return
	}
	if err != nil {
		// Only a broken poller can do this. The machine may well run, and
		// must not be taken for gone.
		log.Error("cannot watch a machine's init; restart Kip", "err", err)
		return
	}
	c.mu.Lock()
	m.process = nil
	itself := m.rec.Instance.State == cloud.Running
	if itself {
		m.rec.Instance.State = cloud.Terminating
	}
	cell := m.rec.Instance.Tags[cloud.TagCell]
	c.mu.Unlock()
	if itself {
		log.Warn("a machine ended by itself", "how", how, "cell", cell, "console", c.lastWords(m.id))
	}
	p.Close()
	c.end(m)
}

// end removes what is left of a machine, until nothing is, or only what a
// stopped one keeps.
func (c *Cloud) end(m *machine) {
	c.keepConsole(m)
	const first, longest = 100 * time.Millisecond, 30 * time.Second
	for tries := 1; ; tries++ {
		c.mu.Lock()
		p, stops := m.rec.Process, m.rec.Instance.State == cloud.Stopping
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
		var err error
		if stops {
			err = halt(ctx, c.cfg, c.kind, m.id, p)
		} else {
			err = destroy(ctx, c.cfg, c.kind, m.id, p)
		}
		cancel()
		if stops && err == nil {
			c.cfg.Reached("halted")
			var rests bool
			if rests, err = c.rest(m); rests {
				return
			}
			if err == nil {
				continue // it has been terminated meanwhile
			}
		}
		if err == nil {
			break
		}
		if c.ctx.Err() != nil {
			return
		}
		c.cfg.Log.Error("cannot remove all of a machine, retrying", "instance", m.id, "tries", tries, "err", err)
		if backoff.Random(nil).Wait(c.ctx, c.cfg.Clock, tries, first, longest) != nil {
			return
		}
	}
	c.mu.Lock()
	delete(c.machines, m.id)
	if token := m.rec.Token; c.tokens[token] == m {
		delete(c.tokens, token)
	}
	m.rec.Instance.State = cloud.Terminating
	m.settle()
	c.mu.Unlock()
	close(m.gone)
}
