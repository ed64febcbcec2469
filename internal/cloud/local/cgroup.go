package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/host"
)

// maxProcesses bounds a machine's tasks, so that a fork bomb in one leaves the
// host its own. A single-pod machine needs a few hundred.
const maxProcesses = 16384

// cpuPeriod is the kernel's default scheduling period for quotas, in
// microseconds.
const cpuPeriod = 100_000

// hierarchy is one mounted cgroup tree of the host: the v2 one, or one of v1's.
type hierarchy struct {
	Mount string `json:"mount"`
	// Controllers are the v1 controllers, or the one name=… of a named
	// hierarchy; nil for v2.
	Controllers []string `json:"controllers,omitempty"`
	V2          bool     `json:"v2,omitempty"`
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.Controllers, controller) }

// hierarchies are all cgroup trees of a host. A pure v2 host has one.
type hierarchies []hierarchy

// pureV2 says that v2 is all there is, and so carries the controllers.
func (hs hierarchies) pureV2() bool { return len(hs) == 1 && hs[0].V2 }

// hostHierarchies reads the host's mount table.
func hostHierarchies() (hierarchies, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	hs, err := parseHierarchies(lines)
	if err != nil {
		return nil, err
	}
	if !hs.pureV2() {
		for _, want := range []string{"cpu", "memory", "pids"} {
			if !slices.ContainsFunc(hs, func(h hierarchy) bool { return h.has(want) }) {
				return nil,
					fmt.Errorf("no cgroup v1 hierarchy with the %s controller is mounted: mount it, e.g. mount -t cgroup -o %s cgroup /sys/fs/cgroup/%s",
						want, want, want)
			}
		}
	}
	return hs, nil
}

// parseHierarchies takes the cgroup mounts out of mountinfo lines (see
// proc_pid_mountinfo(5)), each hierarchy once.
func parseHierarchies(mountinfo []string) (hierarchies, error) {
	var hs hierarchies
	seen := map[string]bool{}
	for _, line := range mountinfo {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 || (g[0] != "cgroup" && g[0] != "cgroup2") {
			continue
		}
		device, mount := f[2], host.UnescapeMount(f[4])
		if seen[device] {
			continue
		}
		seen[device] = true
		if slices.Contains(strings.Split(f[5], ","), "ro") {
			return nil, fmt.Errorf("cgroup file system at %s is mounted read-only: mount -o remount,rw %s", mount, mount)
		}
		h := hierarchy{Mount: mount, V2: g[0] == "cgroup2"}
		if !h.V2 {
			for _, o := range strings.Split(g[2], ",") {
				switch o {
				case "rw", "ro", "xattr", "noprefix", "clone_children", "favordynmods":
				default:
					if !strings.HasPrefix(o, "release_agent=") && !strings.HasPrefix(o, "cpuset_") {
						h.Controllers = append(h.Controllers, o)
					}
				}
			}
		}
		hs = append(hs, h)
	}
	if len(hs) == 0 {
		return nil, errors.New("no cgroup file system is mounted: mount -t cgroup2 none /sys/fs/cgroup")
	}
	return hs, nil
}

// cgroupRoot is the directory, in every hierarchy, under which the machines of
// a cloud are. It lies at the top and not under this process's own cgroup, so
// that a service supervisor that stops Kip's cgroup does not stop machines.
func (h hierarchy) cgroupRoot(group string) string {
	return filepath.Join(h.Mount, "kip-"+group)
}

func (h hierarchy) cgroup(group, id string) string {
	return filepath.Join(h.cgroupRoot(group), id)
}

// create makes the machine's cgroup in every hierarchy and sets its limits.
func (hs hierarchies) create(group, id string, t catalog.InstanceType) error {
	for _, h := range hs {
		if err := h.create(group, id, t, hs.pureV2()); err != nil {
			return fmt.Errorf("cgroup of %s in %s: %w", id, h.Mount, err)
		}
	}
	return nil
}

func (h hierarchy) create(group, id string, t catalog.InstanceType, pureV2 bool) error {
	root, dir := h.cgroupRoot(group), h.cgroup(group, id)
	if pureV2 {
		if err := delegate(h.Mount); err != nil {
			return err
		}
	}
	for _, d := range []string{root, dir} {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if h.has("cpuset") {
			// A new v1 cpuset has no CPU and admits no process.
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inherit(d, name); err != nil {
					return err
				}
			}
		}
		if pureV2 && d == root {
			if err := delegate(root); err != nil {
				return err
			}
		}
	}
	for _, l := range h.limits(t, pureV2) {
		err := os.WriteFile(filepath.Join(dir, l.path), []byte(l.content), 0)
		if l.optional && errors.Is(err, fs.ErrNotExist) {
			continue // the kernel does not account swap
		}
		if err != nil {
			return fmt.Errorf("set %s to %s: %w", l.path, l.content, err)
		}
	}
	return nil
}

type limit struct {
	path, content string
	optional      bool
}

// limits are the settings that hold a machine to its type, in the order in
// which the kernel takes them.
func (h hierarchy) limits(t catalog.InstanceType, pureV2 bool) []limit {
	quota := strconv.FormatInt(max(t.MilliCPU*cpuPeriod/1000, 1000), 10)
	memory := strconv.FormatInt(t.MemoryBytes, 10)
	pids := strconv.Itoa(maxProcesses)
	shares := max(t.MilliCPU*1024/1000, 2)
	if pureV2 {
		// The kernel's own mapping of shares 2…262144 onto weights 1…10000.
		weight := 1 + (min(shares, 262144)-2)*9999/262142
		return []limit{
			{path: "cpu.max", content: quota + " " + strconv.Itoa(cpuPeriod)},
			{path: "cpu.weight", content: strconv.FormatInt(weight, 10)},
			{path: "memory.max", content: memory},
			{path: "memory.swap.max", content: "0", optional: true},
			{path: "pids.max", content: pids},
		}
	}
	var ls []limit
	if h.has("cpu") {
		ls = append(ls,
			limit{path: "cpu.cfs_period_us", content: strconv.Itoa(cpuPeriod)},
			limit{path: "cpu.cfs_quota_us", content: quota},
			limit{path: "cpu.shares", content: strconv.FormatInt(shares, 10)})
	}
	if h.has("memory") {
		ls = append(ls,
			limit{path: "memory.limit_in_bytes", content: memory},
			limit{path: "memory.memsw.limit_in_bytes", content: memory, optional: true})
	}
	if h.has("pids") {
		ls = append(ls, limit{path: "pids.max", content: pids})
	}
	return ls
}

// delegate lets children of a v2 cgroup use its controllers.
func delegate(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	have := strings.Fields(string(b))
	control := filepath.Join(dir, "cgroup.subtree_control")
	for _, want := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(have, want) {
			return fmt.Errorf("cgroup v2 at %s has no %s controller (it has: %s): boot without cgroup_disable=%s, and without a cgroup v1 hierarchy that holds it", dir, want, strings.Join(have, " "), want)
		}
	}
	for _, c := range have {
		err := os.WriteFile(control, []byte("+"+c), 0)
		if err != nil && slices.Contains([]string{"cpu", "memory", "pids"}, c) {
			return fmt.Errorf("enable the %s controller in %s (processes in that cgroup itself prevent it: move them to a child): %w", c, control,
				err)
		}
	}
	return nil
}

// inherit copies a cpuset setting from the parent into an empty child.
func inherit(dir, name string) error {
	own, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(own)) != "" {
		return nil
	}
	v, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), v, 0)
}

// attach moves a process into the machine's cgroups.
func (hs hierarchies) attach(group, id string, pid int) error {
	for _, h := range hs {
		path := filepath.Join(h.cgroup(group, id), "cgroup.procs")
		if err := os.WriteFile(path, []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("move process %d into %s: %w", pid, path, err)
		}
	}
	return nil
}

// tree returns the cgroup directories under dir, itself included, children
// before parents; none when it does not exist. Directories that vanish
// meanwhile are passed over.
func tree(dir string) []string {
	var dirs []string
	// An error means that the directory is gone, which is what we want.
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil
	})
	slices.Reverse(dirs)
	return dirs
}

// processes returns the PIDs in the cgroups under dir.
func processes(dir string) []int {
	var pids []int
	for _, d := range tree(dir) {
		b, err := os.ReadFile(filepath.Join(d, "cgroup.procs"))
		if err != nil {
			continue // removed meanwhile
		}
		for _, f := range strings.Fields(string(b)) {
			// 0 stands for a process of a foreign PID namespace.
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// remove ends whatever is in the machine's cgroups and removes them. It returns
// when they are gone or ctx ends.
func (hs hierarchies) remove(ctx context.Context, clk clock.Clock, group, id string) error {
	pause := time.Millisecond
	for {
		var last error
		for _, h := range hs {
			if err := h.remove(h.cgroup(group, id)); err != nil {
				last = err
			}
		}
		if last == nil {
			return nil
		}
		// Busy: processes are on their way out, or the kernel still drops
		// its references.
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-clk.After(pause):
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

func (h hierarchy) remove(dir string) error {
	h.thaw(dir)
	for _, pid := range processes(dir) {
		// Read a moment ago. PIDs are given out in turn, so this one does not
		// come to mean another process before they have all been through.
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for _, d := range tree(dir) {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", d, err)
		}
	}
	return nil
}

// thaw lets frozen processes go on: under v1, those do not die of a signal, and
// an init does not end before all others have.
func (h hierarchy) thaw(dir string) {
	if !h.has("freezer") {
		return
	}
	for _, d := range tree(dir) {
		// It fails where the cgroup is gone, which is as good.
		_ = os.WriteFile(filepath.Join(d, "freezer.state"), []byte("THAWED"), 0)
	}
}

// removeRoot removes the empty directory above the machines'.
func (hs hierarchies) removeRoot(group string) error {
	for _, h := range hs {
		if err := unix.Rmdir(h.cgroupRoot(group)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", h.cgroupRoot(group), err)
		}
	}
	return nil
}

// machines returns the names of all cgroups of a group, which are the IDs of
// machines.
func (hs hierarchies) machines(group string) []string {
	var ids []string
	for _, h := range hs {
		entries, err := os.ReadDir(h.cgroupRoot(group))
		if err != nil {
			continue // there is none
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(ids, e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	return ids
}
