package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// single is one machine of a LaunchRequest.
type single struct {
	cloud.LaunchRequest
	cloud.Machine
	token string
}

// Launch starts the machines at the same time. It returns when their inits run.
func (c *Cloud) Launch(ctx context.Context, r cloud.LaunchRequest) ([]cloud.Instance, error) {
	if n := len(r.Machines); n < 1 || n > cloud.MaxLaunch {
		return nil, fmt.Errorf("launch: %w: %d machines: want from 1 to %d", cloud.ErrRefused, n, cloud.MaxLaunch)
	}
	if err := c.sameGroup(r); err != nil {
		return nil, err
	}
	instances := make([]cloud.Instance, len(r.Machines))
	errs := make([]error, len(r.Machines))
	var wg sync.WaitGroup
	for n, m := range r.Machines {
		one := single{LaunchRequest: r, Machine: m, token: r.Token + "/" + strconv.Itoa(n)}
		wg.Go(func() { instances[n], errs[n] = c.launchOne(ctx, one) })
	}
	wg.Wait()
	started := 0
	for n, err := range errs {
		switch {
		case err == nil:
			started++
		case errors.Is(err, cloud.ErrCapacity):
			instances[n] = cloud.Instance{}
		default:
			return nil, err
		}
	}
	if started == 0 {
		return nil, errs[0]
	}
	return instances, nil
}

// sameGroup refuses a token that has launched another number of machines.
func (c *Cloud) sameGroup(r cloud.LaunchRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.machines {
		if had := m.rec.Group; had != len(r.Machines) && strings.HasPrefix(m.rec.Token, r.Token+"/") {
			return fmt.Errorf("launch: %w: token %q has launched %d machines and cannot launch %d", cloud.ErrRefused, r.Token, had, len(r.Machines))
		}
	}
	return nil
}

func (c *Cloud) launchOne(ctx context.Context, r single) (cloud.Instance, error) {
	t, err := c.check(r)
	if err != nil {
		return cloud.Instance{}, fmt.Errorf("launch: %w: %w", cloud.ErrRefused, err)
	}
	m, first, err := c.claim(r)
	if err != nil {
		return cloud.Instance{}, err
	}
	if first {
		defer c.wg.Done()
		c.launch(ctx, m, t, r.UserData)
	}
	var i cloud.Instance
	if err := c.unless(ctx, m, []cloud.State{cloud.Pending}, func() error { i = m.instance(); return m.err }); err != nil {
		return cloud.Instance{}, fmt.Errorf("launch %s: %w", m.id, err)
	}
	if i.InstanceType != r.InstanceType || i.Zone != r.Zone || i.Spot != r.Spot {
		return cloud.Instance{}, fmt.Errorf("launch: token %q has launched %s as %s (zone %q, spot %t) and cannot launch %s (zone %q, spot %t)",
			r.token, i.ID, i.InstanceType, i.Zone, i.Spot, r.InstanceType, r.Zone, r.Spot)
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
	offered := false
	for _, o := range t.Offerings {
		offered = offered || o.Zone == r.Zone && o.Spot == r.Spot
	}
	switch {
	case !offered:
		return t, fmt.Errorf("instance type %s is not offered in zone %q with spot %t: want one of %v", t.Name, r.Zone, r.Spot, t.Offerings)
	case r.Token == "":
		return t, errors.New("token is empty: want one that is the same in every attempt of this launch")
	case r.Tags[cloud.TagOwner] == "":
		return t, fmt.Errorf("tag %s is missing: without it List never shows the machine", cloud.TagOwner)
	}
	return t, nil
}

// claim returns the machine of the token, and whether it is this caller who
// has to launch it. If so it has added to c.wg.
func (c *Cloud) claim(r single) (m *machine, first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, errClosed
	}
	if m := c.tokens[r.token]; m != nil {
		return m, false, nil
	}
	used := make(map[uint32]bool, len(c.machines))
	for _, m := range c.machines {
		used[m.rec.Slot] = true
	}
	slot, err := c.network.free(c.cfg.guest(), func(s uint32) bool { return used[s] }, c.lastSlot)
	if err != nil {
		return nil, false, &cloud.CapacityError{InstanceType: r.InstanceType, Zone: r.Zone, Spot: &r.Spot,
			Err: fmt.Errorf("%w (cidr %s, %d machines)", err, c.cfg.CIDR, len(c.machines))}
	}
	c.lastSlot = slot
	var random [8]byte
	rand.Read(random[:])
	m = &machine{
		id:      "i-" + hex.EncodeToString(random[:]),
		settled: make(chan struct{}), gone: make(chan struct{}),
		rec: record{
			Token: r.token,
			Group: len(r.Machines),
			Slot:  slot,
			Instance: cloud.Instance{
				InstanceType: r.InstanceType, Zone: r.Zone, Spot: r.Spot,
				State:        cloud.Pending,
				ManagementIP: c.network.management(slot),
				PodIP:        c.network.pod(slot),
				Launched:     c.cfg.Clock.Now(),
				Tags:         maps.Clone(r.Tags),
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
func (c *Cloud) runs(m *machine, rec record, h *handle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.rec, m.process = rec, h
	m.settle()
	c.wg.Go(func() { c.own(m) })
}

// make takes all steps of a launch. After an error no process runs, but other
// traces may be there.
func (c *Cloud) make(ctx context.Context, rec *record, t catalog.InstanceType, userData []byte) (*handle, error) {
	dir := c.cfg.machineDir(rec.Instance.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the machine's folder: %w", err)
	}
	c.cfg.reached("folder")
	if err := rec.write(dir); err != nil {
		return nil, fmt.Errorf("record the machine: %w", err)
	}
	c.cfg.reached("recorded")
	return c.boot(ctx, rec, t, func() error { return c.populate(ctx, rec.Instance, t.DiskBytes, userData) })
}

// boot starts the machine; fill makes its folder ready meanwhile. After an error
// no process runs, but other traces may be there.
func (c *Cloud) boot(ctx context.Context, rec *record, t catalog.InstanceType, fill func() error) (_ *handle, err error) {
	i := &rec.Instance
	dir := c.cfg.machineDir(i.ID)
	// The process first: while its runtime comes up, the rest is made.
	p, err := c.spawn(i.ID)
	if err != nil {
		return nil, err
	}
	defer p.closePipes()
	defer func() {
		if err != nil {
			p.abandon()
		}
	}()
	c.cfg.reached("spawned")
	if err := fill(); err != nil {
		return nil, fmt.Errorf("fill the machine's folder: %w", err)
	}
	c.cfg.reached("populated")
	if err := c.hierarchies.create(c.cfg.Group, i.ID, t); err != nil {
		return nil, err
	}
	c.cfg.reached("limited")
	if rec.Process, err = identify(p.pid); err != nil {
		return nil, err
	}
	if err := rec.write(dir); err != nil {
		return nil, fmt.Errorf("record the machine's process: %w", err)
	}
	c.cfg.reached("identified")
	if p.handle, err = rec.Process.open(); err != nil {
		return nil, fmt.Errorf("%w%s", err, p.verdict())
	}
	p.handle.child = true
	if err := c.hierarchies.attach(c.cfg.Group, i.ID, p.pid); err != nil {
		return nil, err
	}
	c.cfg.reached("attached")
	if err := plug(c.cfg, c.bridge, i.ID, p.pid, i.ManagementIP); err != nil {
		return nil, err
	}
	c.cfg.reached("plugged")
	if err := p.release(ctx, c.spec(*i, t)); err != nil {
		return nil, err
	}
	c.cfg.reached("released")
	i.State = cloud.Running
	if err := rec.write(dir); err != nil {
		return nil, fmt.Errorf("record that the machine runs: %w", err)
	}
	c.cfg.reached("running")
	return p.handle, nil
}

func (c *Cloud) spec(i cloud.Instance, t catalog.InstanceType) spec {
	s := spec{
		ID: i.ID, Dir: c.cfg.machineDir(i.ID), RootDir: c.cfg.RootDir, Init: c.cfg.Init,
		Address: netip.PrefixFrom(i.ManagementIP, c.cfg.CIDR.Bits()), Gateway: c.network.gateway(),
		Cores: cores(t), MemoryBytes: t.MemoryBytes, PureV2: c.hierarchies.pureV2(),
	}
	if i.ManagementIPv6.IsValid() {
		s.AddressIPv6, s.GatewayIPv6 = netip.PrefixFrom(i.ManagementIPv6, c.cfg.IPv6CIDR.Bits()), c.cfg.networkIPv6().gateway()
	}
	for _, h := range c.hierarchies {
		g := machineGroup{Host: h.cgroup(c.cfg.Group, i.ID), Name: filepath.Base(h.Mount)}
		for _, name := range h.Controllers {
			// Where one hierarchy holds several controllers, each can also be
			// found under its own name.
			if name != g.Name && !strings.HasPrefix(name, "name=") {
				g.Links = append(g.Links, name)
			}
		}
		s.Cgroups = append(s.Cgroups, g)
	}
	return s
}

// populate fills the machine's folder: what its root adds to RootDir, and its
// disk.
func (c *Cloud) populate(ctx context.Context, i cloud.Instance, diskBytes int64, userData []byte) error {
	dir := c.cfg.machineDir(i.ID)
	if c.mkfs != "" && diskBytes > 0 {
		if err := c.makeDisk(ctx, i.ID, diskBytes); err != nil {
			return fmt.Errorf("make a disk of %d bytes: %w", diskBytes, err)
		}
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{"root", 0o755}, {"work", 0o755}, {"upper", 0o755}, {"upper/etc", 0o755}, {"upper/tmp", 0o777 | os.ModeSticky},
		{"upper/var", 0o755}, {"upper/var/lib", 0o755}, {"upper/var/lib/cloud", 0o755}, {"upper/var/lib/cloud/seed", 0o700},
		{"disk", 0o755},
	} {
		p := filepath.Join(dir, d.path)
		if err := os.Mkdir(p, d.mode); err != nil {
			return err
		}
		if err := os.Chmod(p, d.mode); err != nil { // whatever the umask
			return err
		}
	}
	// Unique to the machine, and the same as long as it lives.
	machineID := sha256.Sum256([]byte(i.ID))
	resolv := "# No nameserver: a look-up fails at once.\n"
	if len(c.cfg.Nameservers) > 0 {
		resolv = ""
		for _, ns := range c.cfg.Nameservers {
			resolv += "nameserver " + ns.String() + "\n"
		}
	}
	for _, f := range []struct {
		path, content string
		mode          os.FileMode
	}{
		{"upper/etc/hostname", i.ID + "\n", 0o644},
		{"upper/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n" + i.ManagementIP.String() + " " + i.ID + "\n", 0o644},
		{"upper/etc/resolv.conf", resolv, 0o644},
		{"upper/etc/machine-id", hex.EncodeToString(machineID[:16]) + "\n", 0o444},
		{"upper/var/lib/cloud/seed/user-data", string(userData), 0o400},
	} {
		p := filepath.Join(dir, f.path)
		if err := os.WriteFile(p, []byte(f.content), f.mode); err != nil {
			return err
		}
		if err := os.Chmod(p, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// launching is a machine's first process while it waits to be released.
type launching struct {
	pid    int
	handle *handle
	spec   *os.File
	status *os.File
}

// spawn starts the process in its namespaces. It does nothing until release.
func (c *Cloud) spawn(id string) (*launching, error) {
	console, err := os.OpenFile(c.cfg.consolePath(id), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open console: %w", err)
	}
	defer console.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	specR, specW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer specR.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		specW.Close()
		return nil, err
	}
	defer statusW.Close()
	argv := append([]string{"kip"}, c.cfg.LauncherArgs...)
	p, err := os.StartProcess(c.cfg.LauncherPath, argv, &os.ProcAttr{
		Dir: "/",
		// One thread of Go code, no collection: it lives for milliseconds.
		Env:   []string{"GOMAXPROCS=1", "GOGC=off"},
		Files: []*os.File{null, console, console, specFD: specR, statusFD: statusW},
		Sys: &syscall.SysProcAttr{
			Setsid: true,
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
				unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		},
	})
	if err != nil {
		specW.Close()
		statusR.Close()
		return nil, fmt.Errorf("start %s in new namespaces: %w", c.cfg.LauncherPath, err)
	}
	l := &launching{pid: p.Pid, spec: specW, status: statusR}
	// Waiting is done by our own handle.
	return l, p.Release()
}

// release tells the process to become the machine and waits until it has.
func (l *launching) release(ctx context.Context, s spec) error {
	stop := context.AfterFunc(ctx, func() { l.status.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	writeErr := json.NewEncoder(l.spec).Encode(s)
	l.spec.Close()
	// Nothing but the end means that init has been executed.
	said, err := io.ReadAll(l.status)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case len(said) > 0:
		return errors.New(string(said))
	case err != nil:
		return fmt.Errorf("read how the machine starts: %w", err)
	case writeErr != nil:
		return fmt.Errorf("tell the machine what to be: %w", writeErr)
	}
	return nil
}

// verdict is what a process that died early has said, for an error message.
func (l *launching) verdict() string {
	l.spec.Close()
	said, _ := io.ReadAll(l.status)
	if len(said) == 0 {
		return ""
	}
	return ": " + string(said)
}

func (l *launching) closePipes() {
	l.spec.Close()
	l.status.Close()
}

// abandon ends and reaps the process. It is our child and not reaped yet, so
// the PID is still its own.
func (l *launching) abandon() {
	_ = unix.Kill(l.pid, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(l.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if l.handle != nil {
		l.handle.close()
	}
}
