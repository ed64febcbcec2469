package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Kip is a process that a test runs itself, beside the world's own Kip or while
// that is dead.
type Kip struct {
	PID     int
	Log     string // the file with its standard output and error
	Metrics string // host:port of /metrics, /healthz and /readyz

	done chan struct{}
	err  error
}

// kipCommand is how the Kip that runs was started.
func (w *World) kipCommand() (exec.Cmd, error) {
	pid, err := w.KipPID()
	if err != nil {
		return exec.Cmd{}, err
	}
	list := func(name string) ([]string, error) {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
		return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), err
	}
	args, err := list("cmdline")
	env, envErr := list("environ")
	if err := errors.Join(err, envErr); err != nil {
		return exec.Cmd{}, fmt.Errorf("see how Kip is run: %w", err)
	}
	return exec.Cmd{Path: args[0], Args: args, Env: env}, nil
}

// RunKip starts a Kip as the world runs its own, with more arguments, which win
// over the world's. Its metrics have a port of their own. It is killed when the
// test's process ends.
func (w *World) RunKip(log string, args ...string) (*Kip, error) {
	return w.RunKipOf(w.kipRun.Path, log, args...)
}

// RunKipOf is RunKip with another build of Kip.
func (w *World) RunKipOf(program, log string, args ...string) (*Kip, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	k := &Kip{Log: log, Metrics: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), done: make(chan struct{})}
	cmd := exec.Command(program)
	cmd.Args = slices.Concat([]string{program}, w.kipRun.Args[1:], []string{"--metrics-addr=" + k.Metrics}, args)
	cmd.Env, cmd.Stdout, cmd.Stderr = w.kipRun.Env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		defer close(k.done)
		runtime.LockOSThread() // as in Start
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			k.PID = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			k.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start a Kip of the test's own: %w", err)
	}
	return k, nil
}

// FreePort is a TCP port that nobody listens on now.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// Signal sends a signal; that the process has ended is no error.
func (k *Kip) Signal(sig syscall.Signal) error {
	select {
	case <-k.done: // its number may be another's
		return nil
	default:
	}
	if err := syscall.Kill(k.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to Kip: %w", sig, err)
	}
	return nil
}

// Done is closed when the process has ended.
func (k *Kip) Done() <-chan struct{} { return k.done }

// Err says how the process ended, nil for exit status 0. It is for after Done.
func (k *Kip) Err() error { return k.err }

// Logs says that its log contains a text.
func (k *Kip) Logs(text string) (bool, error) {
	data, err := os.ReadFile(k.Log)
	return strings.Contains(string(data), text), err
}

// Get asks its metrics port for a path, as /readyz.
func (k *Kip) Get(ctx context.Context, path string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+k.Metrics+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}
