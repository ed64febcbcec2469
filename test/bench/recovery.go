package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/elotl/kip/test/harness"
)

const (
	stopFor = time.Minute     // how long Kip is stopped
	holdFor = 2 * time.Minute // how long it has half a core
)

// recovery measures how long it takes until all cells are connected and all pods run,
// from the end of each of three troubles in which the cells themselves are well. None
// of them may be ended for it.
func (s *simulated) recovery(ctx context.Context, cells int) error {
	for _, trouble := range []struct {
		name string
		run  func(context.Context) error
	}{
		{name: "stopped", run: s.stopKip},
		{name: "killed", run: s.killKip},
		{name: "halved", run: s.halveKip},
	} {
		progress("measuring recovery: Kip is %s", trouble.name)
		before := s.launches.endedSoFar()
		if err := trouble.run(ctx); err != nil {
			return fmt.Errorf("have Kip %s: %w", trouble.name, err)
		}
		began := time.Now()
		if err := s.connected(ctx, cells); err != nil {
			return fmt.Errorf("wait for %d cells to be connected after Kip was %s: %w", cells, trouble.name, err)
		}
		if err := s.running(ctx, cells); err != nil {
			return fmt.Errorf("wait for %d pods to run after Kip was %s: %w", cells, trouble.name, err)
		}
		name := fmt.Sprintf("cells_%d_recovery_", cells)
		print(name+"seconds_"+trouble.name, time.Since(began).Seconds(), "s")
		if err := harness.Sleep(ctx, settle); err != nil {
			return err
		}
		// What was late is judged by now, if it is.
		ended := s.launches.endedSoFar() - before
		print(name+"ended_"+trouble.name, float64(ended), "cells")
		if ended > 0 {
			return fmt.Errorf("%d cells were ended, which were well, after Kip was %s", ended, trouble.name)
		}
	}
	return nil
}

// connected waits until Kip has a connection to so many cells.
func (s *simulated) connected(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, scalePatience)
	defer cancel()
	said := time.Now()
	return wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		ask, done := context.WithTimeout(ctx, 10*time.Second)
		defer done()
		n, err := s.kipMetric(ask, "kip_tunnels_connected")
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			progress("  %.0f of %d cells are connected (%v)", n, want, err)
		}
		// A Kip that does not answer is what is waited for the end of.
		return err == nil && int(n) >= want, nil
	})
}

// pid is that of Kip, which runs.
func (s *simulated) pid() (int, error) {
	pid, err := s.KipPID()
	if err == nil && pid == 0 {
		err = errors.New("no Kip runs")
	}
	return pid, err
}

func (s *simulated) stopKip(ctx context.Context) error {
	pid, err := s.pid()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	err = harness.Sleep(ctx, stopFor)
	return errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
}

func (s *simulated) killKip(ctx context.Context) error {
	if err := s.KillKip(ctx); err != nil {
		return err
	}
	return s.StartKip(ctx)
}

func (s *simulated) halveKip(ctx context.Context) error {
	pid, err := s.pid()
	if err != nil {
		return err
	}
	restore, err := halve(pid)
	if err != nil {
		return err
	}
	err = harness.Sleep(ctx, holdFor)
	return errors.Join(err, restore())
}

// halve lets a process have half a core, by a cgroup of its own beside the one that it
// is in, until restore.
func halve(pid int) (restore func() error, err error) {
	const quota, period = "50000", "100000" // microseconds
	root, controller, limits := "/sys/fs/cgroup", "", map[string]string{"cpu.max": quota + " " + period}
	if _, err := os.Stat("/sys/fs/cgroup/cpu"); err == nil {
		root, controller = "/sys/fs/cgroup/cpu", "cpu"
		limits = map[string]string{"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}
	}
	from, err := cgroupOf(pid, controller)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, filepath.Dir(from), fmt.Sprintf("kip-bench-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	move := func(to string) error {
		return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
	restore = func() error { return errors.Join(move(filepath.Join(root, from)), os.Remove(dir)) }
	for file, value := range limits {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			return nil, errors.Join(err, os.Remove(dir))
		}
	}
	if err := move(dir); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return restore, nil
}

// cgroupOf is the path of a process's cgroup: of a controller's hierarchy, or of
// cgroup v2 for "".
func cgroupOf(pid int, controller string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		// 4:cpu,cpuacct:/path, or 0::/path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			if name == controller {
				return parts[2], nil
			}
		}
	}
	return "", fmt.Errorf("process %d is in no cgroup of the hierarchy %q", pid, controller)
}
