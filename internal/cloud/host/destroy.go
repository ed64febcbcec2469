package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/netdump"
)

// halt ends what runs of one machine and removes all but its folder. It needs
// nothing but the ID, and is repeated until it succeeds.
func halt(ctx context.Context, cfg Config, kind Kind, id string, p Process) error {
	h, err := p.Open()
	if err == nil {
		err = kind.Kill(id, h)
		if err == nil {
			_, err = h.Wait(ctx)
		}
		h.Close()
	} else if errors.Is(err, ErrGone) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("end process %d: %w", p.PID, err)
	}
	if err := kind.Clear(ctx, id); err != nil {
		return err
	}
	cfg.Reached("killed")
	if err := unplug(linkName(id)); err != nil {
		return err
	}
	dir := cfg.MachineDir(id)
	if err := unmountUnder(dir); err != nil {
		return err
	}
	if err := freeDisk(ctx, cfg.Clock, dir); err != nil {
		return err
	}
	return freeDisks(ctx, cfg, kind, id)
}

// destroy removes all of one machine that is on the host, its record last. Like
// halt it is repeated until it succeeds.
func destroy(ctx context.Context, cfg Config, kind Kind, id string, p Process) error {
	if err := halt(ctx, cfg, kind, id, p); err != nil {
		return err
	}
	cfg.Reached("unplugged")
	dir := cfg.MachineDir(id)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove folder of %s: %w", id, err)
	}
	for _, e := range entries {
		if e.Name() == recordName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove folder of %s: %w", id, err)
		}
	}
	cfg.Reached("emptied")
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove record of %s: %w", id, err)
	}
	return nil
}

// Destroy ends all machines of cfg.StateDir and removes them, the bridge and
// all that Leftovers would name, and the disks with their data. It needs no Cloud and trusts no record; it
// fails with ErrInUse while a process has the cloud open.
func Destroy(ctx context.Context, cfg Config, kind Kind) error {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return fmt.Errorf("destroy %s cloud: %w", kind.Name(), err)
	}
	if err := MustBeRoot(); err != nil {
		return fmt.Errorf("destroy %s cloud: %w", kind.Name(), err)
	}
	unlock, err := lock(cfg)
	if err != nil {
		return fmt.Errorf("destroy %s cloud: %w", kind.Name(), err)
	}
	defer unlock()
	if err := destroyAll(ctx, cfg, kind); err != nil {
		return fmt.Errorf("destroy %s cloud: %w", kind.Name(), err)
	}
	return nil
}

func destroyAll(ctx context.Context, cfg Config, kind Kind) error {
	// First of all: what bears the name of another cloud is not touched.
	if !cfg.guest() {
		if _, err := ownBridge(cfg); err != nil {
			return err
		}
	}
	all, err := readAll(cfg)
	if err != nil {
		return err
	}
	processes := map[string]Process{}
	for _, s := range all {
		processes[s.id] = s.rec.Process // unset where the record is unreadable
	}
	for _, id := range kind.Traces() {
		if _, ok := processes[id]; !ok && instanceID.MatchString(id) {
			processes[id] = Process{}
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for id, p := range processes {
		wg.Go(func() {
			if err := destroy(ctx, cfg, kind, id, p); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := unmountUnder(cfg.StateDir); err != nil {
		return err
	}
	links, err := ourLinks(cfg)
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := unplug(l.Attrs().Name); err != nil {
			return err
		}
	}
	if err := unguardAgents(ctx, cfg); err != nil {
		return err
	}
	if err := kind.ClearAll(); err != nil {
		return err
	}
	for _, p := range []string{cfg.machinesDir(), cfg.disksDir(), cfg.interruptionsDir(), cfg.outagesDir(), bridgeRecord(cfg)} {
		if err := os.RemoveAll(p); err != nil {
			return err
		}
	}
	return nil
}

// Leftovers names everything on this host that belongs to the cloud in
// cfg.StateDir and should not be there when it has no machine: what its kind has
// there, processes, network devices (the bridge included), nftables tables, mounts, loop
// devices, folders. It changes nothing and needs no Cloud.
func Leftovers(ctx context.Context, cfg Config, kind Kind) ([]string, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return nil, err
	}
	found, running, err := kind.Inspect()
	if err != nil {
		return nil, err
	}
	pids := map[int]bool{}
	for _, pid := range running {
		pids[pid] = true
	}
	all, err := readAll(cfg)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		found = append(found, "folder "+cfg.MachineDir(s.id))
		if h, err := s.rec.Process.Open(); err == nil {
			h.Close()
			pids[s.rec.Process.PID] = true
		} else if !errors.Is(err, ErrGone) {
			return nil, err
		}
	}
	for pid := range pids {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue // ended meanwhile
		}
		found = append(found, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name))))
	}
	links, err := ourLinks(cfg)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		found = append(found, "network device "+l.Attrs().Name)
	}
	for _, t := range agentsTables(ctx, cfg) {
		found = append(found, "nftables table "+t)
	}
	mounts, err := mountsUnder(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		found = append(found, "mount "+m)
	}
	loops, err := LoopsOf(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	for _, l := range loops {
		found = append(found, "loop device "+l)
	}
	slices.Sort(found)
	return found, ctx.Err()
}

// mountsUnder returns this process's mounts below dir, the latest first. There
// should be none: machines mount in their own namespace.
func mountsUnder(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mounts []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		fields := strings.Fields(s.Text())
		if len(fields) < 5 {
			continue
		}
		if p := UnescapeMount(fields[4]); strings.HasPrefix(p, dir+"/") {
			mounts = append(mounts, p)
		}
	}
	slices.Reverse(mounts)
	return mounts, s.Err()
}

func unmountUnder(dir string) error {
	mounts, err := mountsUnder(dir)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	return nil
}

// ourLinks returns the network devices of this cloud, the bridge last: those
// that bear its mark, and those plugged into the bridge before they got it.
func ourLinks(cfg Config) ([]netlink.Link, error) {
	links, err := netdump.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	var ours []netlink.Link
	bridge := -1
	for _, l := range links {
		if l.Attrs().Name != cfg.Bridge || cfg.guest() {
			continue
		}
		if owner, err := bridgeOwner(cfg, l); err == nil && owner == cfg.StateDir {
			bridge = l.Attrs().Index
			ours = append(ours, l)
		}
	}
	for _, l := range links {
		a := l.Attrs()
		if a.Index != bridge && (a.Alias == cfg.alias() || a.MasterIndex == bridge && isCable(l) && strings.HasPrefix(a.Name, "kip")) {
			ours = append(ours, l)
		}
	}
	slices.Reverse(ours)
	return ours, nil
}

// isCable says whether a network device is of a kind that machines are plugged in by.
func isCable(l netlink.Link) bool { return slices.Contains([]string{"veth", "tuntap"}, l.Type()) }

// UnescapeMount undoes the octal escapes of mount tables.
func UnescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
