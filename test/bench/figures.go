package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/elotl/kip/test/harness"
)

// quiet is the load average up to which a machine counts as quiet.
const quiet = 0.5

// print prints a figure that was taken once.
func print(name string, value float64, unit string) {
	fmt.Println(strings.TrimSpace(fmt.Sprintf("bench %s %s %s", name, number(value), unit)))
}

// printAll prints a figure of several runs: the median, and what it is the median of.
func printAll(name string, values []float64, unit string) {
	fmt.Println(strings.Join(strings.Fields(fmt.Sprintf("bench %s %s %s min=%s max=%s runs=%d",
		name, number(median(values)), unit, number(slices.Min(values)), number(slices.Max(values)), len(values))), " "))
}

func number(value float64) string { return strconv.FormatFloat(value, 'g', 6, 64) }

// median leaves the values in their order.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// note prints what the figures after it were taken on or with.
func note(format string, args ...any) { fmt.Printf("# "+format+"\n", args...) }

// progress tells who waits what is done.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// conditions prints what the figures depend on beside Kip.
func conditions(ctx context.Context) error {
	root, err := harness.Repository()
	if err != nil {
		return err
	}
	note("date %s", time.Now().UTC().Format(time.RFC3339))
	note("commit %s", commit(ctx, root))
	memory, err := field("/proc/meminfo", "MemTotal:")
	if err != nil {
		return err
	}
	var uname syscall.Utsname
	if err := syscall.Uname(&uname); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
	}
	cgroups := "v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroups = "v2"
	}
	note("machine %d cores (%s), %.1f GiB, kernel %s, cgroup %s", runtime.NumCPU(), runtime.GOARCH, memory/(1<<20), release(uname), cgroups)
	took, err := fsyncTime(filepath.Join(root, ".kip"))
	if err != nil {
		return err
	}
	note("fsync as outside tests, of the cluster's etcd and of Kip's own; one of a page takes %s here (median of %d)", took, fsyncs)
	average, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(average), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return fmt.Errorf("/proc/loadavg begins with %q: %w", first, err)
	}
	note("load average %s at the start", first)
	if load > quiet {
		note("WARNING: the machine is not quiet (a load average above %g): these figures say little", quiet)
		progress("the load average is %s: this machine is not quiet, and figures taken on it say little", first)
	}
	return nil
}

// commit says which sources these are.
func commit(ctx context.Context, root string) string {
	git := func(args ...string) (string, error) {
		// Whoever owns the folder.
		out, err := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	below, err := git("rev-parse", "--show-prefix")
	if err == nil && below != "" {
		err = errors.New("the checkout around it is another's") // as when an archive is unpacked in one
	}
	head := ""
	if err == nil {
		head, err = git("rev-parse", "--short=12", "HEAD")
	}
	if err != nil {
		return "unknown: " + err.Error()
	}
	switch changed, err := git("status", "--porcelain"); {
	case err != nil:
		return head + ", changed or not: " + err.Error()
	case changed != "":
		return fmt.Sprintf("%s, and %d files that are not as in it", head, len(strings.Split(changed, "\n")))
	}
	return head
}

func release(u syscall.Utsname) string {
	var b []byte
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

// fsyncs is how many fsyncTime takes the median of.
const fsyncs = 50

// fsyncTime is what an append of a page and its fsync take where the clusters' state
// is: on some machines nothing.
func fsyncTime(dir string) (_ time.Duration, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	f, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	var took []float64
	for range fsyncs {
		began := time.Now()
		if _, err := io.WriteString(f, strings.Repeat("k", os.Getpagesize())); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began).Seconds())
	}
	return time.Duration(median(took) * float64(time.Second)).Round(time.Microsecond), nil
}
