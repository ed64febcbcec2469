package namespace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/test/harness"
)

// A test begins when the machine has CPU for it: the tests of several worlds wait most of the time, or ask
// for all there is, and where too many do that at once nothing of them is in time.
const (
	// fewest tests of a process go on beside each other, however busy the machine is.
	fewest = 3
	// busy is the part of the CPUs from which on no other test begins.
	busy = 0.7
	// measure is over how long is seen how busy the machine is. What has begun shows by then.
	measure = 2 * time.Second
)

// ours are the turns of this process's tests.
var ours = newTurns(filepath.Join(os.TempDir(), fmt.Sprintf("kip-tests-%d.lock", os.Getuid())), load)

// turns say how many tests go on beside each other.
type turns struct {
	mu      sync.Mutex
	running map[string]int // how many namespaces a test has

	// lock is a file: one process of the machine measures at a time, so that each sees what the others began.
	lock string
	// load is how busy the machine is, from 0 to 1.
	load func(context.Context) (float64, error)
}

func newTurns(lock string, load func(context.Context) (float64, error)) *turns {
	return &turns{running: map[string]int{}, lock: lock, load: load}
}

// take waits for the test's turn, which ends with the test. One that has a turn has it for all its
// namespaces and subtests.
func (o *turns) take(t testing.TB) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	began := time.Now()
	if err := o.wait(t.Context(), test, func() { t.Log("waits until the machine has CPU for it") }); err != nil {
		t.Fatalf("wait until the machine has CPU for the test: %v", err)
	}
	if waited := time.Since(began); waited > measure {
		t.Logf("waited %s until the machine had CPU for it", waited.Round(time.Second))
	}
	t.Cleanup(func() { o.leave(test) })
}

// wait waits for a test's turn, and tells if it is not at once.
func (o *turns) wait(ctx context.Context, test string, tell func()) error {
	for most, told := fewest, false; !o.enter(most, test); {
		if !told {
			tell()
			told = true
		}
		free, err := o.isFree(ctx)
		if err != nil {
			return err
		}
		if free {
			most = math.MaxInt
		}
	}
	return nil
}

// enter takes a turn if fewer tests have one, or this has.
func (o *turns) enter(most int, test string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running[test] == 0 && len(o.running) >= most {
		return false
	}
	o.running[test]++
	return true
}

func (o *turns) leave(test string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running[test]--; o.running[test] == 0 {
		delete(o.running, test)
	}
}

// isFree measures, unless another process does so just now: then it waits for a moment, and says no.
func (o *turns) isFree(ctx context.Context) (bool, error) {
	file, err := os.OpenFile(o.lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	defer file.Close()
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, harness.Sleep(ctx, measure/10)
	case err != nil:
		return false, fmt.Errorf("lock %s: %w", o.lock, err)
	}
	now, err := o.load(ctx)
	return err == nil && now < busy, err
}

// load is what is used of the CPUs that this process may run on, measured now, but for what nice processes
// use themselves: they give way. What the kernel does for them counts.
func load(ctx context.Context) (float64, error) {
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return 0, fmt.Errorf("read which CPUs this process may run on: %w", err)
	}
	used, all, err := cpuTimes("/proc/stat", &cpus)
	if err != nil {
		return 0, err
	}
	if err := harness.Sleep(ctx, measure); err != nil {
		return 0, err
	}
	usedNow, allNow, err := cpuTimes("/proc/stat", &cpus)
	if err != nil {
		return 0, err
	}
	if allNow <= all || usedNow < used {
		return 0, fmt.Errorf("/proc/stat: of %d ticks the CPUs have spent %d on work; a moment before of %d %d", allNow, usedNow, all, used)
	}
	// The time in which they wait for a disk may become less (proc_stat(5)).
	return min(1, float64(usedNow-used)/float64(allNow-all)), nil
}

// cpuTimes are the ticks that some CPUs have spent on what does not give way, and on anything: proc_stat(5).
func cpuTimes(file string, cpus *unix.CPUSet) (used, all uint64, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(data)) {
		name, times, _ := strings.Cut(line, " ")
		cpu, err := strconv.Atoi(strings.TrimPrefix(name, "cpu"))
		if err != nil || !strings.HasPrefix(name, "cpu") || !cpus.IsSet(cpu) {
			continue
		}
		lineUsed, lineAll, err := ticks(times)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: the times of %s: %w", file, name, err)
		}
		used, all = used+lineUsed, all+lineAll
	}
	if all == 0 {
		return 0, 0, fmt.Errorf("%s has no times of the CPUs that this process may run on", file)
	}
	return used, all, nil
}

// ticks adds up the times of a CPU.
func ticks(times string) (used, all uint64, err error) {
	fields := strings.Fields(times)
	const nice, idle, iowait, guest = 1, 3, 4, 8 // a guest's time is in the user's, too
	if len(fields) < guest {
		return 0, 0, fmt.Errorf("%d figures, want %d", len(fields), guest)
	}
	for i, f := range fields[:guest] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		all += n
		if i != nice && i != idle && i != iowait {
			used += n
		}
	}
	return used, all, nil
}
