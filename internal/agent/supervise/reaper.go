package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reaper starts processes and, when the agent is PID 1, collects the orphans
// that the kernel hands to it. Every process of the agent is started through
// one Reaper, so that it never takes the exit status of a child that somebody
// waits for.
type Reaper struct {
	log *slog.Logger

	mu  sync.Mutex
	own map[int]chan struct{} // children that Start's caller waits for; closed when collected
}

// NewReaper returns a Reaper that only starts processes until Reap runs.
func NewReaper(log *slog.Logger) *Reaper {
	return &Reaper{log: log, own: map[int]chan struct{}{}}
}

// Start starts cmd and returns a function that waits for its end, as
// exec.Cmd.Wait does. The function must be called once.
func (r *Reaper) Start(cmd *exec.Cmd) (wait func() error, err error) {
	// The lock is held from before the fork until the child is known, or Reap
	// could take a child that ends at once for an orphan.
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pid, collected := cmd.Process.Pid, make(chan struct{})
	r.own[pid] = collected
	return func() error {
		state, err := cmd.Process.Wait()
		r.mu.Lock()
		delete(r.own, pid)
		r.mu.Unlock()
		close(collected)
		if err != nil {
			return fmt.Errorf("wait for %s (pid %d): %w", cmd.Path, pid, err)
		}
		if !state.Success() {
			return &exec.ExitError{ProcessState: state}
		}
		return nil
	}, nil
}

// Run starts cmd, which leads a process group, and waits for it. When ctx ends
// first, the group is killed.
func (r *Reaper) Run(ctx context.Context, cmd *exec.Cmd) error {
	wait, err := r.Start(cmd)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // not collected yet: the group is this one
		<-ended
		return ctx.Err()
	}
}

// Reap collects orphans until ctx ends. Only PID 1 (or a subreaper) needs it.
func (r *Reaper) Reap(ctx context.Context) {
	child := make(chan os.Signal, 1)
	signal.Notify(child, unix.SIGCHLD)
	defer signal.Stop(child)
	for {
		r.collect(ctx)
		select {
		case <-ctx.Done():
			return
		case <-child:
		}
	}
}

// collect reaps every child that has ended and that nobody waits for.
func (r *Reaper) collect(ctx context.Context) {
	for {
		pid, err := peek()
		if err != nil {
			r.log.Error("look for ended processes", "err", err)
			return
		}
		if pid == 0 {
			return
		}
		r.mu.Lock()
		collected, own := r.own[pid]
		if !own {
			// Still under the lock: the pid cannot become a child of ours.
			_, err = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		r.mu.Unlock()
		if own {
			// The kernel shows this one first until its owner has it.
			select {
			case <-collected:
			case <-ctx.Done():
				return
			}
		} else if err != nil && !errors.Is(err, unix.ECHILD) && !errors.Is(err, unix.EINTR) {
			r.log.Error("reap an orphan", "pid", pid, "err", err)
			return
		}
	}
}

// peek returns the pid of a child that has ended, without collecting it, or 0.
func peek() (int, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("waitid: %w", err)
		}
		// si_pid is the first member of the union behind signo, errno and code;
		// the union is aligned to a pointer.
		const offset = (3*4 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), offset))), nil
	}
}
