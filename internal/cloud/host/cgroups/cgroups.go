// Package cgroups owns the cgroups in which machines of this host are, in every hierarchy, v1
// and v2: how they are made, what they limit, how they are found and removed. It must not
// know what a machine is made of.
package cgroups

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

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cloud/host"
)

// maxProcesses bounds a machine's tasks, so that a fork bomb in one leaves the
// host its own. A single-pod machine needs a few hundred.
const maxProcesses = 16384

// cpuPeriod is the kernel's default scheduling period for quotas, in
// microseconds.
const cpuPeriod = 100_000

// Hierarchy is one mounted cgroup tree of the host: the v2 one, or one of v1's.
type Hierarchy struct {
	Mount string `json:"mount"`
	// Controllers are the v1 controllers, or the one name=… of a named
	// hierarchy; nil for v2.
	Controllers []string `json:"controllers,omitempty"`
	V2          bool     `json:"v2,omitempty"`
}

// Has says whether a v1 hierarchy has a controller.
func (h Hierarchy) Has(controller string) bool { return slices.Contains(h.Controllers, controller) }

// Hierarchies are all cgroup trees of a host. A pure v2 host has one.
type Hierarchies []Hierarchy

// PureV2 says that v2 is all there is, and so carries the controllers.
func (hs Hierarchies) PureV2() bool { return len(hs) == 1 && hs[0].V2 }

// hostHierarchies reads the host's mount table.
func hostHierarchies() (Hierarchies, error) {
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
	if !hs.PureV2() {
		for _, want := range []string{"cpu", "memory", "pids"} {
			if !slices.ContainsFunc(hs, func(h Hierarchy) bool { return h.Has(want) }) {
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
func parseHierarchies(mountinfo []string) (Hierarchies, error) {
	var hs Hierarchies
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
		h := Hierarchy{Mount: mount, V2: g[0] == "cgroup2"}
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

// root is the directory, in every hierarchy, under which the machines of
// a cloud are. It lies at the top and not under this process's own cgroup, so
// that a service supervisor that stops Kip's cgroup does not stop machines.
func (h Hierarchy) root(group string) string {
	return filepath.Join(h.Mount, "kip-"+group)
}

// dir is the cgroup of a machine.
func (h Hierarchy) dir(group, id string) string {
	return filepath.Join(h.root(group), id)
}

// Machines are the cgroups of the machines of one cloud.
type Machines struct {
	Hierarchies
	// Group names the cloud among those of the host; see host.Config.
	Group string
}

// Size is what a machine is held to.
type Size struct {
	// MilliCPU is its share of processors, in thousandths of one.
	MilliCPU int64
	// MemoryBytes are all that it has, in memory and swap.
	MemoryBytes int64
}

// Of opens the cgroups of a cloud on this host.
func Of(group string) (Machines, error) {
	hs, err := hostHierarchies()
	return Machines{Hierarchies: hs, Group: group}, err
}

// Create makes the machine's cgroup in every hierarchy and sets its limits.
func (m Machines) Create(id string, size Size) error {
	for _, h := range m.Hierarchies {
		if err := h.create(m.Group, id, size, m.PureV2()); err != nil {
			return fmt.Errorf("cgroup of %s in %s: %w", id, h.Mount, err)
		}
	}
	return nil
}

// Dir is the machine's cgroup in a hierarchy.
func (m Machines) Dir(h Hierarchy, id string) string { return h.dir(m.Group, id) }

// Limits are what Create has set in a hierarchy, in order.
func (m Machines) Limits(h Hierarchy, size Size) []Limit { return h.limits(size, m.PureV2()) }

func (h Hierarchy) create(group, id string, size Size, pureV2 bool) error {
	root, dir := h.root(group), h.dir(group, id)
	if pureV2 {
		if err := Delegate(h.Mount); err != nil {
			return err
		}
	}
	for _, d := range []string{root, dir} {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if h.Has("cpuset") {
			// A new v1 cpuset has no CPU and admits no process.
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inherit(d, name); err != nil {
					return err
				}
			}
		}
		if pureV2 && d == root {
			if err := Delegate(root); err != nil {
				return err
			}
		}
	}
	for _, l := range h.limits(size, pureV2) {
		err := os.WriteFile(filepath.Join(dir, l.Path), []byte(l.Content), 0)
		if l.Optional && errors.Is(err, fs.ErrNotExist) {
			continue // the kernel does not account swap
		}
		if err != nil {
			return fmt.Errorf("set %s to %s: %w", l.Path, l.Content, err)
		}
	}
	return nil
}

// Limit is a file of a cgroup and what it holds.
type Limit struct {
	Path, Content string
	// Optional says that a kernel without it holds machines as well as it can.
	Optional bool
}

// limits are the settings that hold a machine to its size, in the order in
// which the kernel takes them.
func (h Hierarchy) limits(size Size, pureV2 bool) []Limit {
	quota := strconv.FormatInt(max(size.MilliCPU*cpuPeriod/1000, 1000), 10)
	memory := strconv.FormatInt(size.MemoryBytes, 10)
	pids := strconv.Itoa(maxProcesses)
	shares := max(size.MilliCPU*1024/1000, 2)
	if pureV2 {
		// The kernel's own mapping of shares 2…262144 onto weights 1…10000.
		weight := 1 + (min(shares, 262144)-2)*9999/262142
		return []Limit{
			{Path: "cpu.max", Content: quota + " " + strconv.Itoa(cpuPeriod)},
			{Path: "cpu.weight", Content: strconv.FormatInt(weight, 10)},
			{Path: "memory.max", Content: memory},
			{Path: "memory.swap.max", Content: "0", Optional: true},
			{Path: "pids.max", Content: pids},
		}
	}
	var ls []Limit
	if h.Has("cpu") {
		ls = append(ls,
			Limit{Path: "cpu.cfs_period_us", Content: strconv.Itoa(cpuPeriod)},
			Limit{Path: "cpu.cfs_quota_us", Content: quota},
			Limit{Path: "cpu.shares", Content: strconv.FormatInt(shares, 10)})
	}
	if h.Has("memory") {
		ls = append(ls,
			Limit{Path: "memory.limit_in_bytes", Content: memory},
			Limit{Path: "memory.memsw.limit_in_bytes", Content: memory, Optional: true})
	}
	if h.Has("pids") {
		ls = append(ls, Limit{Path: "pids.max", Content: pids})
	}
	return ls
}

// Delegate lets children of a v2 cgroup use its controllers.
func Delegate(dir string) error {
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

// Attach moves a process into the machine's cgroups.
func (m Machines) Attach(id string, pid int) error {
	for _, h := range m.Hierarchies {
		path := filepath.Join(h.dir(m.Group, id), "cgroup.procs")
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

// Remove ends whatever is in the machine's cgroups and removes them. It returns
// when they are gone or ctx ends.
func (m Machines) Remove(ctx context.Context, clk clock.Clock, id string) error {
	for tries := 1; ; tries++ {
		var last error
		for _, h := range m.Hierarchies {
			if err := h.remove(h.dir(m.Group, id)); err != nil {
				last = err
			}
		}
		if last == nil {
			return nil
		}
		// Busy: processes are on their way out, or the kernel still drops
		// its references.
		if backoff.Random(nil).Wait(ctx, clk, tries, time.Millisecond, 100*time.Millisecond) != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		}
	}
}

func (h Hierarchy) remove(dir string) error {
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
func (h Hierarchy) thaw(dir string) {
	if !h.Has("freezer") {
		return
	}
	for _, d := range tree(dir) {
		// It fails where the cgroup is gone, which is as good.
		_ = os.WriteFile(filepath.Join(d, "freezer.state"), []byte("THAWED"), 0)
	}
}

// RemoveRoot removes the empty directory above the machines'.
func (m Machines) RemoveRoot() error {
	for _, h := range m.Hierarchies {
		if err := unix.Rmdir(h.root(m.Group)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", h.root(m.Group), err)
		}
	}
	return nil
}

// IDs are the names of all cgroups of the cloud, which are the IDs of machines.
func (m Machines) IDs() []string {
	var ids []string
	for _, h := range m.Hierarchies {
		entries, err := os.ReadDir(h.root(m.Group))
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

// Thaw lets the frozen processes of a machine go on, so that they can end.
func (m Machines) Thaw(id string) {
	for _, h := range m.Hierarchies {
		h.thaw(h.dir(m.Group, id))
	}
}

// Inspect tells of the cgroups, in words, and which processes are in them.
func (m Machines) Inspect() (found []string, pids []int) {
	for _, h := range m.Hierarchies {
		root := h.root(m.Group)
		pids = append(pids, processes(root)...)
		for _, d := range tree(root) {
			found = append(found, "cgroup "+d)
		}
	}
	return found, pids
}
