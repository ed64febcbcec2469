package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// single is one machine of a LaunchRequest.
type single struct {
	cloud.LaunchSpec
	userData []byte
	tags     map[string]string
	group    int    // how many machines the launch has
	slot     uint32 // of its addresses; 0 for any that is free
	launch   string // the token of the launch
	token    string // the token of this machine
}

// Launch starts the machines at the same time. It returns when their inits run.
func (c *Cloud) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	if n := len(r.Machines); n < 1 || n > cloud.MaxLaunch {
		return cloud.NotLaunched(n, fmt.Errorf("launch: %w: %d machines: want from 1 to %d", cloud.ErrRefused, n, cloud.MaxLaunch))
	}
	if r.Shared() {
		// On a link that machines share, one that has joined could answer for another
		// whose token it knows.
		return cloud.NotLaunched(len(r.Machines), fmt.Errorf("launch: %w: machines share no user data here", cloud.ErrRefused))
	}
	if err := c.sameGroup(r); err != nil {
		return cloud.NotLaunched(len(r.Machines), err)
	}
	results := make(cloud.LaunchResults, len(r.Machines))
	var wg sync.WaitGroup
	for n, m := range r.Machines {
		one := single{
			LaunchSpec: r.LaunchSpec,
			userData:   m.UserData,
			tags:       r.TagsOf(n),
			group:      len(r.Machines),
			launch:     r.Token,
			token:      r.Token + "/" + strconv.Itoa(n),
		}
		wg.Go(func() { results[n].Instance, results[n].Err = c.launchOne(ctx, one) })
	}
	wg.Wait()
	return results
}

// LaunchAt is Launch of one machine, with a management address of the caller's choice:
// for a model of another cloud, which has told that address already.
func (c *Cloud) LaunchAt(ctx context.Context, r cloud.LaunchRequest, address netip.Addr) (cloud.Instance, error) {
	slot, ok := c.network.slot(c.cfg.guest(), address)
	if !ok || len(r.Machines) != 1 || r.Shared() {
		return cloud.Instance{}, fmt.Errorf("launch: %w: %d machines at %s: want one, with user data of its own, and an address of machines in %s",
			cloud.ErrRefused, len(r.Machines), address, c.cfg.CIDR)
	}
	return c.launchOne(ctx, single{
		LaunchSpec: r.LaunchSpec,
		userData:   r.Machines[0].UserData,
		tags:       r.TagsOf(0),
		group:      1,
		slot:       slot,
		launch:     r.Token,
		token:      r.Token + "/0",
	})
}

// sameGroup refuses a token that has launched another number of machines.
func (c *Cloud) sameGroup(r cloud.LaunchRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.machines {
		if had := m.rec.Group; had != len(r.Machines) && strings.HasPrefix(m.rec.Token, r.Token+"/") {
			return fmt.Errorf("launch: %w: token %q has launched %d machines and cannot launch %d", cloud.ErrMismatch, r.Token, had, len(r.Machines))
		}
	}
	return nil
}

func (c *Cloud) launchOne(ctx context.Context, r single) (cloud.Instance, error) {
	t, err := c.check(r)
	if err != nil {
		return cloud.Instance{}, fmt.Errorf("launch: %w: %w", cloud.ErrRefused, err)
	}
	m, first, err := c.claim(r, c.outage(r.Zone))
	if err != nil {
		return cloud.Instance{}, err
	}
	if first {
		defer c.wg.Done()
		c.launch(ctx, m, t, r.userData)
	}
	var i cloud.Instance
	if err := c.unless(ctx, m, []cloud.State{cloud.Pending}, func() error { i = m.instance(); return m.err }); err != nil {
		return cloud.Instance{}, fmt.Errorf("launch %s: %w", m.id, err)
	}
	if i.InstanceType != r.InstanceType || i.Zone != r.Zone || i.Spot != r.Spot() {
		return cloud.Instance{},
			fmt.Errorf("launch: %w: token %q has launched %s as %s (zone %q, spot %t) and cannot launch %s (zone %q, spot %t)",
				cloud.ErrMismatch, r.token, i.ID, i.InstanceType, i.Zone, i.Spot, r.InstanceType, r.Zone, r.Spot())
	}
	return i, nil
}

// check refuses requests that can never succeed.
func (c *Cloud) check(r single) (catalog.InstanceType, error) {
	t, ok := c.cfg.instanceType(r.InstanceType)
	if !ok {
		var names []string
		for _, t := range c.cfg.Catalogue {
			names = append(names, t.Name)
		}
		return t, fmt.Errorf("unknown instance type %q: want one of %s", r.InstanceType, strings.Join(names, ", "))
	}
	if r.CapacityType == cloud.Dedicated {
		return t, fmt.Errorf("capacity type is %q: want %q: this host is shared by all machines", r.CapacityType, cloud.OnDemand)
	}
	offered := false
	for _, o := range t.Offerings {
		offered = offered || o.Zone == r.Zone && o.Spot == r.Spot()
	}
	switch {
	case !offered:
		return t, fmt.Errorf("instance type %s is not offered in zone %q with spot %t: want one of %v", t.Name, r.Zone, r.Spot(), t.Offerings)
	case r.launch == "":
		return t, errors.New("token is empty: want one that is the same in every attempt of this launch")
	case r.tags[cloud.TagOwner] == "":
		return t, fmt.Errorf("tag %s is missing: without it List never shows the machine", cloud.TagOwner)
	}
	return t, nil
}

// claim returns the machine of the token, and whether it is this caller who
// has to launch it, unless there is an outage. If so it has added to c.wg.
func (c *Cloud) claim(r single, outage error) (m *machine, first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, errClosed
	}
	if m := c.tokens[r.token]; m != nil {
		return m, false, nil
	}
	if outage != nil {
		return nil, false, outage
	}
	used := make(map[uint32]bool, len(c.machines))
	for _, m := range c.machines {
		used[m.rec.Slot] = true
	}
	slot := r.slot
	if slot == 0 {
		slot, err = c.network.free(c.cfg.guest(), func(s uint32) bool { return used[s] }, c.lastSlot)
	} else if used[slot] {
		err = fmt.Errorf("the address %s is in use", c.network.management(slot))
	}
	if err != nil {
		return nil, false, cloud.No(cloud.ErrCapacity, cloud.Scope{Zone: r.Zone},
			fmt.Errorf("%w (cidr %s, %d machines)", err, c.cfg.CIDR, len(c.machines)))
	}
	c.lastSlot = slot
	var random [8]byte
	rand.Read(random[:])
	m = &machine{
		id:      "i-" + hex.EncodeToString(random[:]),
		settled: make(chan struct{}),
		gone:    make(chan struct{}),
		rec: record{
			Token: r.token,
			Group: r.group,
			Slot:  slot,
			Instance: cloud.Instance{
				InstanceType: r.InstanceType,
				Zone:         r.Zone,
				Spot:         r.Spot(),
				State:        cloud.Pending,
				ManagementIP: c.network.management(slot),
				PodIP:        c.network.pod(slot),
				Launched:     c.cfg.Clock.Now(),
				Tags:         r.tags,
			},
		},
	}
	m.rec.Instance.ID = m.id
	c.cfg.addressIPv6(&m.rec.Instance, slot)
	c.machines[m.id] = m
	c.tokens[r.token] = m
	c.wg.Add(1)
	return m, true, nil
}

// launch makes the machine, or nothing of it, and hands it to its goroutine. It
// is Pending until then; the outcome is in m.err.
func (c *Cloud) launch(ctx context.Context, m *machine, t catalog.InstanceType, userData []byte) {
	rec := m.rec // ours alone while it is Pending
	started := c.cfg.Clock.Now()
	h, err := c.make(ctx, &rec, t, userData)
	if err == nil {
		c.cfg.Log.InfoContext(ctx, "launched a machine", "instance", m.id, "cell", rec.Instance.Tags[cloud.TagCell],
			"type", t.Name, "address", rec.Instance.ManagementIP, "took", c.cfg.Clock.Since(started).Round(time.Millisecond))
		c.runs(m, rec, h)
		return
	}
	c.mu.Lock()
	m.rec.Process, m.err = rec.Process, err
	delete(c.tokens, rec.Token) // the next attempt starts afresh
	c.mu.Unlock()
	c.wg.Go(func() { c.end(m) })
	select {
	case <-m.gone:
	case <-c.ctx.Done():
	case <-ctx.Done():
	}
	c.mu.Lock()
	m.rec.Instance.State = cloud.Terminating
	m.settle()
	c.mu.Unlock()
}

// runs notes that a machine is up and gives it its goroutine.
func (c *Cloud) runs(m *machine, rec record, h *Handle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.rec, m.process = rec, h
	m.settle()
	c.wg.Go(func() { c.own(m) })
}

// make takes all steps of a launch. After an error no process runs, but other
// traces may be there.
func (c *Cloud) make(ctx context.Context, rec *record, t catalog.InstanceType, userData []byte) (*Handle, error) {
	dir := c.cfg.MachineDir(rec.Instance.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the machine's folder: %w", err)
	}
	c.cfg.Reached("folder")
	if err := rec.write(dir); err != nil {
		return nil, fmt.Errorf("record the machine: %w", err)
	}
	c.cfg.Reached("recorded")
	return c.boot(ctx, rec, t, userData, false)
}

// boot starts the machine. After an error no process runs, but other traces may be
// there.
func (c *Cloud) boot(ctx context.Context, rec *record, t catalog.InstanceType, userData []byte, again bool) (*Handle, error) {
	i := &rec.Instance
	b := &Boot{
		ID:       i.ID,
		Type:     t,
		Dir:      c.cfg.MachineDir(i.ID),
		Console:  c.cfg.consolePath(i.ID),
		Address:  netip.PrefixFrom(i.ManagementIP, c.cfg.CIDR.Bits()),
		Gateway:  c.network.gateway(),
		Again:    again,
		UserData: userData,
		cloud:    c,
		rec:      rec,
	}
	if i.ManagementIPv6.IsValid() {
		b.AddressIPv6, b.GatewayIPv6 = netip.PrefixFrom(i.ManagementIPv6, c.cfg.IPv6CIDR.Bits()), c.cfg.networkIPv6().gateway()
	}
	h, err := c.kind.Start(ctx, b)
	if err != nil {
		return nil, err
	}
	i.State = cloud.Running
	if err := rec.write(b.Dir); err != nil {
		defer h.Close()
		err = errors.Join(fmt.Errorf("record that the machine runs: %w", err), h.Kill())
		_, _ = h.Wait(context.Background()) // reaped
		return nil, err
	}
	c.cfg.Reached("running")
	return h, nil
}
