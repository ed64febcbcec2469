package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc/PID/stat, which the kernel keeps at a
// hundredth of a second whatever its own is: USER_HZ, proc_pid_stat(5).
const tick = 10 * time.Millisecond

// process is what a process used in the window.
type process struct {
	CPUSeconds      float64 `json:"cpu_seconds"`
	PeakMemoryBytes int64   `json:"peak_memory_bytes"` // resident
}

// cpu is the processor time, of user and system, that all threads of a process
// have used so far.
func cpu(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(data))
}

func parseCPU(stat string) (time.Duration, error) {
	// The second field is a name in parentheses, which may hold anything.
	f := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	const utime, stime = 14 - 3, 15 - 3 // their numbers in proc_pid_stat(5), less what was cut
	if len(f) <= stime {
		return 0, fmt.Errorf("stat %q: want at least %d fields after the name", stat, stime+1)
	}
	return sumTicks(f[utime], f[stime])
}

func sumTicks(counts ...string) (time.Duration, error) {
	var sum time.Duration
	for _, s := range counts {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("number of ticks: %w", err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// machineCPU is the processor time that all of the machine has used so far.
func machineCPU() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(data), "\n")
	// cpu user nice system idle iowait irq softirq steal …: proc_stat(5).
	f := strings.Fields(first)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q: want cpu and at least 8 numbers", first)
	}
	return sumTicks(f[1], f[2], f[3], f[6], f[7], f[8])
}

// resetPeakMemory makes the peak begin at what the process has now.
func resetPeakMemory(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // proc_pid_clear_refs(5)
}

// peakMemory is the most resident memory that the process had since the reset,
// in bytes.
func peakMemory(pid int) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no VmHWM", path)
}
