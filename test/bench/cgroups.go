package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cell is the cgroup of one local cell, whose child kubepods holds the pod.
type cell struct{ memory, cpu string }

// cgroupsOfCells finds the cells on a bridge; the local cloud names their cgroups
// after it.
func cgroupsOfCells(bridge string) ([]cell, error) {
	const v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
	memory, cpu := v1, "/sys/fs/cgroup/cpuacct"
	if _, err := os.Stat(v1); err != nil {
		memory, cpu = v2, v2
	}
	found, err := filepath.Glob(filepath.Join(memory, "kip-"+bridge, "i-*"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no cell has a cgroup under %s/kip-%s", memory, bridge)
	}
	var cells []cell
	for _, dir := range found {
		cells = append(cells, cell{memory: dir, cpu: filepath.Join(cpu, "kip-"+bridge, filepath.Base(dir))})
	}
	return cells, nil
}

// without returns a figure of the cell less that of its pod.
func without(dir string, figure func(dir string) (float64, error)) (float64, error) {
	all, err := figure(dir)
	if err != nil {
		return 0, err
	}
	pod, err := figure(filepath.Join(dir, "kubepods"))
	return all - pod, err
}

// memoryBytes is the anonymous memory of the cell's system parts.
func (c cell) memoryBytes() (float64, error) {
	return without(c.memory, func(dir string) (float64, error) {
		return field(filepath.Join(dir, "memory.stat"), "total_rss", "anon")
	})
}

// cpuSeconds is what the cell's system parts have used so far.
func (c cell) cpuSeconds() (float64, error) {
	return without(c.cpu, func(dir string) (float64, error) {
		data, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage"))
		if errors.Is(err, os.ErrNotExist) {
			micros, err := field(filepath.Join(dir, "cpu.stat"), "usage_usec")
			return micros / 1e6, err
		}
		if err != nil {
			return 0, err
		}
		nanos, err := strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
		return nanos / 1e9, err
	})
}

// field reads the first of the named fields from a file of "name value" lines.
func field(path string, names ...string) (float64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		for line := range strings.SplitSeq(string(data), "\n") {
			// /proc/meminfo has a unit after it.
			if f := strings.Fields(line); len(f) > 1 && f[0] == name {
				return strconv.ParseFloat(f[1], 64)
			}
		}
	}
	return 0, fmt.Errorf("%s has none of %v", path, names)
}
