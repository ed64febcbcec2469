// Package cgroups puts the agent of a machine that it alone runs (PID 1) into a
// cgroup beside the pods', so that each is accounted and limited by itself and a
// cgroup v2 root is left free for controllers. It makes that one cgroup and sets
// no limit.
package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Enter moves this process, before it has started others, into the cgroup name
// below the root of every cgroup hierarchy that is mounted. Hierarchies that
// cannot be written are left out: the error says which, and the rest is done.
func Enter(name string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	defer f.Close()
	roots, err := hierarchies(f)
	if err != nil {
		return fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var errs []error
	for _, root := range roots {
		if err := join(filepath.Join(root, name), root, os.Getpid()); err != nil {
			errs = append(errs, fmt.Errorf("enter cgroup %s: %w", filepath.Join(root, name), err))
		}
	}
	return errors.Join(errs...)
}

// hierarchies returns the mount points of cgroup file systems, v1 and v2.
func hierarchies(mountinfo io.Reader) ([]string, error) {
	var out []string
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		// 36 35 98:0 /root /mount/point options [optional…] - type source options
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 {
			continue
		}
		if t, _, _ := strings.Cut(after, " "); t == "cgroup" || t == "cgroup2" {
			out = append(out, fields[4])
		}
	}
	return out, lines.Err()
}

func join(dir, root string, pid int) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	// A new cpuset of cgroup v1 is empty and takes no process.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || strings.TrimSpace(string(have)) != "" {
			continue
		}
		parent, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // cgroup v2: inherited
		}
		if err := os.WriteFile(filepath.Join(dir, file), parent, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
}
