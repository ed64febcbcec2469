package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/backoff"
)

// Back-off between restarts: it doubles from firstDelay to maxDelay and starts
// afresh once a process has run for stableAfter. The pod goes on running while
// a component is down, so there is no hurry beyond the first tries.
const (
	firstDelay  = 250 * time.Millisecond
	maxDelay    = 30 * time.Second
	stableAfter = time.Minute
)

// pipeGrace is how long a component's output is read on after it has ended: a
// child of it may hold the pipe open.
const pipeGrace = time.Second

// Spec says what to run.
type Spec struct {
	// Name is the component's name in logs and in agentapi.Status.
	Name string
	Path string
	Args []string // without argv[0], which is Name
	Env  []string
	// StopTimeout is how long it may take to end after SIGTERM before it is
	// killed.
	StopTimeout time.Duration
	// Log takes the output. Close closes it.
	Log *LogFile
	// Ready is waited for before every start; nil means at once. It returns
	// when the process may start or ctx ends. What it waits for is WaitsFor.
	Ready    func(ctx context.Context) error
	WaitsFor string
}

// Process is one supervised component.
type Process struct {
	spec   Spec
	reaper *Reaper
	clock  clock.Clock
	random backoff.Random
	log    *slog.Logger

	mu       sync.Mutex
	pid      int
	starts   int
	waiting  string
	failures int
}

// Options of a Process.
type Options struct {
	Reaper *Reaper
	Clock  clock.Clock
	// Random is for jitter. Optional.
	Random backoff.Random
	Log    *slog.Logger
}

// New returns a process that Run starts.
func New(spec Spec, o Options) *Process {
	return &Process{
		spec:    spec,
		reaper:  o.Reaper,
		clock:   o.Clock,
		random:  o.Random,
		log:     o.Log.With("component", spec.Name),
		waiting: "starting",
	}
}

// Status reports how the process fares.
func (p *Process) Status() agentapi.Component {
	p.mu.Lock()
	defer p.mu.Unlock()
	return agentapi.Component{
		Name:     p.spec.Name,
		PID:      p.pid,
		Restarts: max(p.starts-1, 0),
		Waiting:  p.waiting,
	}
}

// Run keeps the process running until ctx ends; then it stops it and returns.
func (p *Process) Run(ctx context.Context) {
	// Pdeathsig is sent when the *thread* that forked ends, so that thread must
	// live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	for ctx.Err() == nil {
		if p.spec.Ready != nil {
			p.setWaiting("waiting for " + p.spec.WaitsFor)
			if err := p.spec.Ready(ctx); err != nil {
				break
			}
		}
		began := p.clock.Now()
		err := p.once(ctx)
		if ctx.Err() != nil {
			break
		}
		if p.clock.Since(began) >= stableAfter {
			p.failures = 0
		}
		p.failures++
		delay := p.random.After(p.failures, firstDelay, maxDelay)
		p.log.Warn("component ended", "err", err, "restart_in", delay)
		why := fmt.Sprintf("ended (%v), restart in %s", err, delay.Round(time.Millisecond))
		if tail := p.spec.Log.LastLines(5); tail != "" {
			why += "; last lines:\n" + tail
		}
		p.setWaiting(why)
		timer := p.clock.NewTimer(delay)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
	p.setWaiting("stopped")
}

// Close closes the log, once Run has returned.
func (p *Process) Close() error { return p.spec.Log.Close() }

func (p *Process) setWaiting(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = why
}

// once runs the process until it ends or ctx does. The error says how it ended;
// it is never nil.
func (p *Process) once(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe for its output: %w", err)
	}
	defer r.Close()
	cmd := &exec.Cmd{
		Path:   p.spec.Path,
		Args:   append([]string{p.spec.Name}, p.spec.Args...),
		Env:    p.spec.Env,
		Stdout: w,
		Stderr: w,
		Dir:    "/",
		// A component does not outlive its supervisor: the next one could not
		// wait for it. The pod's own processes are no children of ours.
		SysProcAttr: &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM},
	}
	wait, err := p.reaper.Start(cmd)
	w.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.spec.Path, err)
	}
	p.mu.Lock()
	p.pid, p.waiting = cmd.Process.Pid, ""
	p.starts++
	p.mu.Unlock()
	p.log.Info("component started", "pid", cmd.Process.Pid)

	copied, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(copied)
		copyOutput(p.spec.Log, r)
	}()
	go func() { ended <- wait() }()

	select {
	case err = <-ended:
	case <-ctx.Done():
		err = p.stop(cmd.Process, ended)
	}
	p.mu.Lock()
	p.pid = 0
	p.mu.Unlock()
	_ = r.SetReadDeadline(time.Now().Add(pipeGrace))
	<-copied
	if err == nil {
		err = errors.New("exit status 0")
	}
	return err
}

// stop sends SIGTERM and, after the stop timeout, SIGKILL.
func (p *Process) stop(proc *os.Process, ended <-chan error) error {
	_ = proc.Signal(unix.SIGTERM) // it may have ended already
	timer := p.clock.NewTimer(p.spec.StopTimeout)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C():
		p.log.Warn("component did not end in time and is killed", "timeout", p.spec.StopTimeout)
		_ = proc.Kill()
		return <-ended
	}
}

func copyOutput(log *LogFile, r *os.File) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			_, _ = log.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}
