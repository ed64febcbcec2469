// Package child owns one process that must not outlive its parent: its start,
// its log, its end, and the record by which a later run finds it should all
// else have failed. It ends no process but the one that the record names.
package child

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spec says what to run.
type Spec struct {
	Path string
	Args []string // without the program's name
	Env  []string // added to the parent's
	Dir  string   // the folder that it runs in; the parent's when empty
	// LogFile gets standard output and error; it is appended to.
	LogFile string
	// Record is the file that names the process while it runs; none when empty.
	Record string
	// Death is what the kernel sends it when the parent ends; SIGKILL when 0.
	Death syscall.Signal
}

// Process is a child that was started.
type Process struct {
	pid    int
	record string
	done   chan struct{}
	err    error

	mu   sync.Mutex
	sent []syscall.Signal
}

// record is what is kept of a process: its number, and when it started, in
// clock ticks since boot, since numbers are given again.
type record struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Start starts the process. The kernel kills it, or sends it Spec.Death, when the
// parent ends, also when the parent is killed.
func Start(s Spec) (*Process, error) {
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", filepath.Base(s.Path), err)
	}
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, log, log
	// A group of its own: Ctrl-C is for the parent, which stops it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: cmp.Or(s.Death, syscall.SIGKILL)}
	p := &Process{record: s.Record, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		// The kernel sends the death signal when the *thread* that started the
		// child ends, so that thread waits here until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
			if s.Record != "" {
				err = writeRecord(s.Record, p.pid)
			}
			if err != nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		}
		started <- errors.Join(err, log.Close())
		if err == nil {
			p.err = cmd.Wait()
		}
		if s.Record != "" {
			_ = os.Remove(s.Record)
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	return p, nil
}

// PID is the process's number.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended, nil for exit status 0. It is for after Done.
func (p *Process) Err() error { return p.err }

// Signal sends a signal; that the process has ended is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	select {
	case <-p.done: // its number may be another's
		return nil
	default:
	}
	p.mu.Lock()
	p.sent = append(p.sent, sig)
	p.mu.Unlock()
	if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// Kill ends the process as a crash would, and waits for that.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop asks the process to end, waits, and kills it when ctx ends first, which
// is an error.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("process %d did not stop when it was asked to: killed", p.pid), p.Kill())
	}
}

// Unasked says how the process ended, unless it had exit status 0, or died of a
// signal that this Process sent it. It is for after Done: a program that dies of a
// panic just before it is killed, or while it stops, has not ended well.
func (p *Process) Unasked() error {
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if by := exit.Sys().(syscall.WaitStatus); by.Signaled() && slices.Contains(p.sent, by.Signal()) {
			return nil
		}
	}
	return p.err
}

// KillRecorded kills the process that a record of an earlier run names, if it
// still runs, and removes the record.
func KillRecorded(ctx context.Context, path string) error {
	r, err := readRecord(path)
	if err != nil || r == nil {
		return err
	}
	// The descriptor stands for this very process: its number cannot be given
	// to another one between the look and the kill.
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return forget(path)
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", r.PID, err)
	}
	defer unix.Close(fd)
	if start, err := startTime(r.PID); err != nil || start != r.Start {
		return forget(path) // ended, or another process of that number
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", r.PID, err)
	}
	for {
		// The descriptor becomes readable when the process has ended. A short
		// wait lets the end of ctx be seen.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int((50 * time.Millisecond).Milliseconds()))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", r.PID, err)
		case n > 0:
			return forget(path)
		case ctx.Err() != nil:
			return fmt.Errorf("wait for the end of process %d: %w", r.PID, ctx.Err())
		}
	}
}

// Marked returns the processes of this machine that have the variable in their
// environment, but for this one: children inherit it.
func Marked(variable string) ([]int, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range procs {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue // it ended, or it is not ours to look at
		}
		for v := range strings.SplitSeq(string(env), "\x00") {
			if v == variable {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids, nil
}

// Of are the processes that a process has started and not yet seen end.
func Of(parent int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The name is in parentheses, and may hold some; state and parent follow.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// forget removes a record, which the parent may do too when it is still there.
func forget(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a process: %w", err)
	}
	return nil
}

func writeRecord(path string, pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("read when process %d started: %w", pid, err)
	}
	data, err := json.Marshal(record{PID: pid, Start: start})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("record process %d: %w", pid, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("record process %d: %w", pid, err)
	}
	return nil
}

func readRecord(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of an earlier process: %w", err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil || r.PID <= 0 {
		return nil, fmt.Errorf("%s holds %q, want a process: remove it when no earlier run is alive", path, data)
	}
	return &r, nil
}

// startTime is field 22 of /proc/PID/stat, in clock ticks since boot: proc(5).
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the program's name, may hold blanks and parentheses.
	_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields after the name, want 20", pid, len(fields))
	}
	return strconv.ParseUint(fields[19], 10, 64)
}
