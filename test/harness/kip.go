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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/elotl/kip/dev/child"
)

// Kip is a process that a test runs itself, beside the world's own Kip or while
// that is dead.
type Kip struct {
	*child.Process
	Log     string // the file with its standard output and error
	Metrics string // host:port of /metrics, /healthz and /readyz

	done  chan struct{}
	amiss []string // once it has ended

	mu       sync.Mutex
	forgiven [][]string
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
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	k := &Kip{Log: log, Metrics: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), done: make(chan struct{})}
	if k.Process, err = child.Start(child.Spec{
		Path: program, Args: slices.Concat(w.kipRun.Args[1:], []string{"--metrics-addr=" + k.Metrics}, args), Env: w.kipRun.Env, LogFile: log,
	}); err != nil {
		return nil, fmt.Errorf("start a Kip of the test's own: %w", err)
	}
	w.kips = append(w.kips, k)
	go func() {
		defer close(k.done)
		<-k.Process.Done()
		k.amiss = k.look()
	}()
	return k, nil
}

// look says what is amiss with a Kip that has ended: how it ended, and what it logged.
func (k *Kip) look() (amiss []string) {
	if err := k.Unasked(); err != nil {
		amiss = append(amiss, err.Error())
	}
	text, err := os.ReadFile(k.Log)
	if err != nil {
		amiss = append(amiss, err.Error())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(append(amiss, Amiss(text)...), func(what string) bool {
		return slices.ContainsFunc(k.forgiven, func(texts []string) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(what, text) })
		})
	})
}

// Forgive lets the Kip end, or log, what would be amiss and has this text in it, and
// each of the others: what its test is about. It is for before the Kip ends.
func (k *Kip) Forgive(text string, others ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgiven = append(k.forgiven, append([]string{text}, others...))
}

// Amiss is an error if the Kip, which has ended, did not end as it was told to, or
// logged a crash or an instance that it did not know.
func (k *Kip) Amiss() error {
	if len(k.amiss) == 0 {
		return nil
	}
	return fmt.Errorf("Kip, process %d: %s", k.PID(), strings.Join(k.amiss, "; "))
}

// crash is what a Go program prints, or logs where it recovers.
var crash = regexp.MustCompile(`^(panic: |fatal error: |SIG[A-Z]+: )|DATA RACE|panic serving|Observed a panic`)

// Stray is what Kip logs when it ends an instance that it has launched and does not
// know: a leak, or a pod's second cell, which it mends.
const Stray = "terminate an instance that has our tags and no cell"

// Amiss are the lines of a Kip's log that tell of a crash or of a stray instance.
func Amiss(log []byte) (lines []string) {
	for line := range strings.Lines(string(log)) {
		if crash.MatchString(line) || strings.Contains(line, Stray) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// FreePort is a TCP port that nobody listens on now.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// Done is closed when the process has ended and has been looked at.
func (k *Kip) Done() <-chan struct{} { return k.done }

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
