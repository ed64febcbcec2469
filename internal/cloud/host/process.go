package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Process names one process of one boot of this host, so that a reused PID is
// never taken for it.
type Process struct {
	PID int `json:"pid,omitempty"`
	// Started is field 22 of /proc/PID/stat: clock ticks since boot.
	Started uint64 `json:"started,omitempty"`
	BootID  string `json:"bootID,omitempty"`
}

var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

// identify returns the identity of the process that has this PID now.
func identify(pid int) (Process, error) {
	boot, err := bootID()
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	started, err := startTime(stat)
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Process{PID: pid, Started: started, BootID: boot}, nil
}

// startTime takes field 22 out of a stat line. The second field, the command,
// may hold spaces and parentheses, so counting starts after the last one.
func startTime(stat []byte) (uint64, error) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, fmt.Errorf("stat %q has no command", stat)
	}
	fields := strings.Fields(string(stat[i+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("stat %q has %d fields after the command, want at least 20", stat, len(fields))
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// ErrGone says that a process no longer runs.
var ErrGone = errors.New("process is gone")

// Handle is a hold on a process that cannot come to mean another one.
type Handle struct {
	f   *os.File
	pid int
	// child is set by whoever started the process, and so has to reap it.
	child bool
}

// Open returns a hold on p, or ErrGone when it no longer runs. A zombie does
// not run.
func (p Process) Open() (*Handle, error) {
	if p.PID == 0 {
		return nil, ErrGone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d (pidfd_open, Linux 5.10 or later): %w", p.PID, err)
	}
	h := &Handle{f: os.NewFile(uintptr(fd), "pidfd"), pid: p.PID}
	// Only now, with the hold taken, does a comparison prove anything.
	if now, err := identify(p.PID); err != nil || now != p || exited(fd) {
		h.Close()
		return nil, ErrGone
	}
	return h, nil
}

func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// Close lets go of the process.
func (h *Handle) Close() { h.f.Close() }

// Kill sends SIGKILL. A process that has ended is no error.
func (h *Handle) Kill() error {
	raw, err := h.f.SyscallConn()
	if err != nil {
		return err
	}
	var killErr error
	if err := raw.Control(func(fd uintptr) {
		killErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
	}); err != nil {
		return err
	}
	if errors.Is(killErr, unix.ESRCH) {
		return nil
	}
	return killErr
}

// Wait returns when the process has ended, reaping it if it is a child, or
// when ctx ends. How it ended is known of a child only. A handle whose wait was
// cut short can only be closed.
func (h *Handle) Wait(ctx context.Context) (how string, err error) {
	raw, err := h.f.SyscallConn()
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, h.Close)
	defer stop()
	// The runtime's poller watches the pidfd: no thread is held meanwhile.
	err = raw.Read(func(fd uintptr) bool { return exited(int(fd)) })
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", err
	}
	if !h.child {
		return "", nil
	}
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(h.pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if ws.Signaled() {
		return "killed by " + ws.Signal().String(), nil
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus()), nil
}
