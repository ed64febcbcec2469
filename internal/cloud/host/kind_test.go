package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	networks "github.com/elotl/kip/test/network"
)

// sleepers are machines that do nothing: plain processes, without a network.
type sleepers struct {
	mu    sync.Mutex
	boots []Boot
	fails error
	calls []string        // of what ends machines
	disks map[string]bool // that are attached
	hangs string          // the disk of which no machine answers
}

func (s *sleepers) Name() string { return "sleepers" }

func (s *sleepers) Logs() []string { return []string{"own.log"} }

func (s *sleepers) Start(_ context.Context, b *Boot) (*Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.WriteFile(filepath.Join(b.Dir, "kept"), []byte(b.ID), 0o600); err != nil || s.fails != nil {
		return nil, errors.Join(err, s.fails)
	}
	path, err := exec.LookPath("sleep")
	if err != nil {
		return nil, err
	}
	p, err := os.StartProcess(path, []string{"sleep", "1000"}, &os.ProcAttr{})
	if err != nil {
		return nil, err
	}
	h, err := b.Identify(p.Pid)
	if err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	s.boots = append(s.boots, Boot{ID: b.ID, Address: b.Address, Gateway: b.Gateway, Again: b.Again, UserData: b.UserData})
	return h, p.Release()
}

func (s *sleepers) call(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, what)
}

func (s *sleepers) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *sleepers) Kill(_ string, p *Handle) error { s.call("kill"); return p.Kill() }

func (s *sleepers) Clear(context.Context, string) error { s.call("clear"); return nil }

func (s *sleepers) ClearAll() error { s.call("clear all"); return nil }

func (s *sleepers) AttachDisk(ctx context.Context, p Process, d Disk) error {
	if s.hangs == d.ID {
		s.call("hangs")
		<-ctx.Done()
		return ctx.Err()
	}
	if _, err := os.Stat(d.File); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks[d.ID] = p.PID != 0
	return nil
}

func (s *sleepers) DetachDisk(_ context.Context, _ Process, d Disk) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.disks, d.ID)
	return nil
}

func (s *sleepers) GrowDisk(_ context.Context, p Process, d Disk, bytes int64) error {
	if has, err := os.Stat(d.File); err != nil || has.Size() != bytes || p.PID == 0 {
		return fmt.Errorf("a disk of %d bytes is shown to process %d: %v, %w", bytes, p.PID, has, err)
	}
	s.call("grow")
	return nil
}

func (s *sleepers) Traces() []string { return []string{"no-machine"} }

func (s *sleepers) Inspect() ([]string, []int, error) { return nil, nil, nil }

// claimed is the network of this process's tests.
var claimed = sync.OnceValues(func() (networks.Network, error) {
	return networks.Host.Claim(filepath.Join(os.TempDir(), "kip-host-"), func(earlier networks.Network) error {
		return errors.Join(Destroy(context.Background(), configOf(earlier), &sleepers{}), os.RemoveAll(earlier.State))
	})
})

func configOf(n networks.Network) Config {
	return Config{
		StateDir: n.State, Bridge: n.Bridge, CIDR: n.CIDR,
		Catalogue: []catalog.InstanceType{{Name: "nano", Offerings: []catalog.PurchaseOption{{Zone: "here"}}}},
		Log:       slog.New(slog.DiscardHandler),
	}
}

// sleeping is a cloud of sleepers, of which the test leaves nothing.
func sleeping(t *testing.T) (Config, *sleepers) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("machines need root")
	}
	n, err := claimed()
	if err != nil {
		t.Fatal(err)
	}
	cfg, kind := configOf(n), &sleepers{disks: map[string]bool{}}
	remove := func() {
		if err := Destroy(context.Background(), cfg, kind); err != nil {
			t.Error(err)
		}
		if left, err := Leftovers(context.Background(), cfg, kind); err != nil || len(left) > 0 {
			t.Errorf("left over: %q, %v", left, err)
		}
		if err := os.RemoveAll(cfg.StateDir); err != nil {
			t.Error(err)
		}
	}
	remove()
	t.Cleanup(remove)
	return cfg, kind
}

func opened(t *testing.T, cfg Config, kind Kind) *Cloud {
	t.Helper()
	c, err := New(cfg, kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func launchRequest() cloud.LaunchRequest {
	return cloud.LaunchRequest{
		Token:      "token",
		LaunchSpec: cloud.LaunchSpec{InstanceType: "nano", Zone: "here", Tags: map[string]string{cloud.TagOwner: "me"}},
		Machines:   []cloud.Machine{{UserData: []byte("data")}},
	}
}

func state(t *testing.T, c *Cloud) cloud.State {
	t.Helper()
	l, err := c.List(t.Context(), "me")
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Instances) == 0 {
		return ""
	}
	return l.Instances[0].State
}

func TestAnyKindOfMachineIsKeptByItsRecord(t *testing.T) {
	cfg, kind := sleeping(t)
	c := opened(t, cfg, kind)
	list, err := c.Launch(t.Context(), launchRequest()).All()
	if err != nil {
		t.Fatal(err)
	}
	id := list[0].ID
	disk, err := c.CreateDisk(t.Context(), cloud.DiskRequest{
		Token: "disk", SizeBytes: 512, Zone: "here", Tags: map[string]string{cloud.TagOwner: "me"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context(), id).Err(); err != nil || state(t, c) != cloud.Stopped {
		t.Fatalf("stopped: %s, %v", state(t, c), err)
	}
	if err := c.Start(t.Context(), id).Err(); err != nil || state(t, c) != cloud.Running {
		t.Fatalf("started: %s, %v", state(t, c), err)
	}
	address, gateway := netip.PrefixFrom(list[0].ManagementIP, 16), network{cfg.CIDR}.gateway()
	want := []Boot{
		{ID: id, Address: address, Gateway: gateway, UserData: []byte("data")},
		{ID: id, Address: address, Gateway: gateway, Again: true},
	}
	if !reflect.DeepEqual(kind.boots, want) {
		t.Errorf("boots %+v, want %+v", kind.boots, want)
	}
	if err := c.AttachDisk(t.Context(), disk.ID, id); err != nil || !kind.disks[disk.ID] {
		t.Errorf("attached: %v, %v", kind.disks, err)
	}

	if grown, err := c.GrowDisk(t.Context(), disk.ID, 1000); err != nil || grown.SizeBytes != 1024 || !slices.Contains(kind.calls, "grow") {
		t.Errorf("grown: %+v, %v, after %v", grown, err, kind.calls)
	}

	// The next process finds the same machine.
	before, err := Inspect(cfg, id)
	if err != nil || before.PID == 0 {
		t.Fatalf("%+v, %v", before, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = opened(t, cfg, kind)
	if after, err := Inspect(cfg, id); err != nil || after != before || state(t, c) != cloud.Running {
		t.Errorf("adopted: %+v, %v, was %+v", after, err, before)
	}

	// What ends by itself is removed, and its disk is free.
	if err := unix.Kill(before.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, c)
	if len(kind.disks) > 0 {
		t.Errorf("still attached: %v", kind.disks)
	}
	if _, err := os.Stat(cfg.MachineDir(id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the machine's folder: %v", err)
	}
}

// gone waits until no machine is listed; the deadline only bounds a failing test.
func gone(t *testing.T, c *Cloud) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for state(t, c) != "" {
		select {
		case <-deadline:
			t.Fatal("the machine is listed")
		case <-tick.C:
		}
	}
}

// closers end by themselves when they are asked, but for the first time.
type closers struct {
	*sleepers
	deaf int
}

func (c *closers) Shut(_ context.Context, _ string, p Process) error {
	c.call("shut")
	if c.deaf--; c.deaf >= 0 {
		return errors.New("it does not answer")
	}
	return unix.Kill(p.PID, unix.SIGTERM)
}

func (c *closers) ShutLimit() time.Duration { return time.Minute }

// One on a busy host may not answer at once, and keeps what it has not written all the same.
func TestAMachineThatDoesNotAnswerIsAskedAgainToEnd(t *testing.T) {
	cfg, sleepers := sleeping(t)
	c := opened(t, cfg, &closers{sleepers, 1})
	list, err := c.Launch(t.Context(), launchRequest()).All()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context(), list[0].ID).Err(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(patience)
	for state(t, c) != cloud.Stopped {
		select {
		case <-deadline:
			t.Fatalf("it is %s", state(t, c))
		case <-time.After(5 * time.Millisecond):
		}
	}
	called := sleepers.called()
	called = slices.DeleteFunc(called, func(what string) bool { return strings.HasPrefix(what, "clear") })
	if len(called) < 2 || slices.Contains(called, "kill") {
		t.Errorf("it was ended by %q", called)
	}
}

// A machine may be its guest's, and answer nobody.
func TestAMachineThatHangsHoldsUpNoDiskOfOthers(t *testing.T) {
	cfg, kind := sleeping(t)
	c := opened(t, cfg, kind)
	ids, disks := make([]string, 2), make([]string, 3)
	for n := range ids {
		r := launchRequest()
		r.Token = fmt.Sprint(r.Token, n)
		list, err := c.Launch(t.Context(), r).All()
		if err != nil {
			t.Fatal(err)
		}
		ids[n] = list[0].ID
	}
	for n := range disks {
		d, err := c.CreateDisk(t.Context(), cloud.DiskRequest{
			Token: fmt.Sprint("disk", n), SizeBytes: 512, Zone: "here", Tags: map[string]string{cloud.TagOwner: "me"},
		})
		if err != nil {
			t.Fatal(err)
		}
		disks[n] = d.ID
	}
	kind.hangs = disks[0]
	ctx, giveUp := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() { hung <- c.AttachDisk(ctx, disks[0], ids[0]) }()
	t.Cleanup(func() {
		giveUp()
		if err := <-hung; !errors.Is(err, context.Canceled) {
			t.Errorf("what hung ends with %v", err)
		}
	})
	within, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !slices.Contains(kind.called(), "hangs") {
		if within.Err() != nil {
			t.Fatal("the machine is not told of its disk")
		}
		time.Sleep(time.Millisecond)
	}
	if all, err := c.ListDisks(within, "me"); err != nil || len(all) != len(disks) {
		t.Errorf("%d disks, %v", len(all), err)
	}
	if err := c.AttachDisk(within, disks[1], ids[1]); err != nil {
		t.Errorf("attach another: %v", err)
	}
	if _, err := c.GrowDisk(within, disks[1], 1000); err != nil {
		t.Errorf("grow another: %v", err)
	}
	if err := c.DeleteDisk(within, disks[2]); err != nil {
		t.Errorf("delete another: %v", err)
	}
	if err := c.Terminate(within, ids[1]).Err(); err != nil {
		t.Errorf("end another machine: %v", err)
	}
	late, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.DetachDisk(late, disks[0], ids[0]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who changes the same disk does not wait: %v", err)
	}
}

func TestAMachineThatItsKindCannotStartLeavesNothing(t *testing.T) {
	cfg, kind := sleeping(t)
	c := opened(t, cfg, kind)
	kind.fails = errors.New("no firmware")
	if _, err := c.Launch(t.Context(), launchRequest()).All(); !errors.Is(err, kind.fails) {
		t.Errorf("launched: %v", err)
	}
	gone(t, c)
	entries, err := os.ReadDir(filepath.Join(cfg.StateDir, "machines"))
	if err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	// The same token launches afresh, and Terminate ends what it launched.
	kind.fails, kind.calls = nil, nil
	list, err := c.Launch(t.Context(), launchRequest()).All()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Terminate(t.Context(), list[0].ID).Err(); err != nil || state(t, c) != "" {
		t.Errorf("terminated: %v", err)
	}
	if want := []string{"kill", "clear"}; !reflect.DeepEqual(kind.calls, want) {
		t.Errorf("calls %q, want %q", kind.calls, want)
	}
}

func TestALaunchAtAnAddressHasThatOrIsRefused(t *testing.T) {
	cfg, kind := sleeping(t)
	c := opened(t, cfg, kind)
	at := func(token string, address netip.Addr) (cloud.Instance, error) {
		r := launchRequest()
		r.Token = token
		return c.LaunchAt(t.Context(), r, address)
	}
	address := network{cfg.CIDR}.management(77)
	one, err := at("a", address)
	if err != nil || one.ManagementIP != address {
		t.Fatalf("%+v, %v", one, err)
	}
	if _, err := at("b", address); !errors.Is(err, cloud.ErrCapacity) {
		t.Errorf("an address that is in use: %v", err)
	}
	if _, err := at("c", network{cfg.CIDR}.gateway()); !errors.Is(err, cloud.ErrRefused) {
		t.Errorf("the host's address: %v", err)
	}
	gone := c.Gone(one.ID)
	select {
	case <-gone:
		t.Error("gone while it runs")
	default:
	}
	if err := c.Terminate(t.Context(), one.ID).Err(); err != nil {
		t.Fatal(err)
	}
	<-gone
	<-c.Gone(one.ID)
	if _, err := at("d", address); err != nil {
		t.Errorf("an address that is free again: %v", err)
	}
}
