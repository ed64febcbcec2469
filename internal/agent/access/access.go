// Package access owns what an operator does on the machine of a cell: the commands that run there, and the logs of the
// machine's parts. It must not judge who may: Kip does, before it asks.
package access

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/supervise"
	"github.com/elotl/kip/internal/agentapi"
)

const (
	// commandsAtOnce bounds the commands that run: each is in the cgroup of the machine's own parts.
	commandsAtOnce = 8
	// hangUpGrace is what a command has from SIGHUP to SIGKILL when its connection ends.
	hangUpGrace = 2 * time.Second
	// blockedFor is how long a command takes no input before the connection is tried: nobody reads from it meanwhile.
	blockedFor = time.Second
	// outputGrace is how long the output of a command that has ended is read on: what it has left behind may hold it open.
	outputGrace = time.Second
)

// Options of an Access. All fields are required.
type Options struct {
	// Env is the environment of commands.
	Env    []string
	Reaper *supervise.Reaper
	// Logs are the files of the machine's logs, by name.
	Logs map[string]string
	Log  *slog.Logger
}

// Access runs commands and reads logs.
type Access struct {
	o      Options
	places chan struct{}
}

// New returns an Access that runs nothing yet.
func New(o Options) *Access { return &Access{o: o, places: make(chan struct{}, commandsAtOnce)} }

// Exec answers for agentapi.PathExec.
func (a *Access) Exec(w http.ResponseWriter, r *http.Request) {
	e, err := agentapi.ExecOf(r.URL.Query())
	hijacker, ok := w.(http.Hijacker)
	if err == nil && (!ok || !strings.EqualFold(r.Header.Get("Upgrade"), agentapi.ExecProtocol)) {
		err = errors.New("a command needs a connection that upgrades to " + agentapi.ExecProtocol)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case a.places <- struct{}{}:
		defer func() { <-a.places }()
	default:
		http.Error(w, fmt.Sprintf("%d commands run on this machine: want fewer", commandsAtOnce), http.StatusTooManyRequests)
		return
	}
	c, err := a.start(e)
	if err != nil {
		http.Error(w, fmt.Sprintf("start the command on the machine: %v", err), http.StatusBadRequest)
		return
	}
	conn, buffered, err := hijacker.Hijack()
	if err != nil {
		_ = c.hangUp()
		c.close()
		a.o.Log.Error("take over the connection of a command", "err", err)
		return
	}
	defer conn.Close()
	a.o.Log.Info("a command of an operator runs", "pid", c.cmd.Process.Pid, "terminal", e.TTY)
	status := c.serve(conn, buffered)
	a.o.Log.Info("a command of an operator has ended", "pid", c.cmd.Process.Pid, "status", status)
}

// command is one that runs.
type command struct {
	cmd *exec.Cmd
	// stdin is the command's, stderr nil with a terminal. terminal is all of them then.
	stdin, stdout, stderr, terminal *os.File
	ended                           chan error // of it
}

// shell is the machine's.
func shell() string {
	if _, err := os.Stat("/bin/bash"); err == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// start starts a command.
func (a *Access) start(e agentapi.Exec) (*command, error) {
	argv := e.Command
	if len(argv) == 0 {
		argv = []string{shell()}
	}
	program, err := lookPath(argv[0], a.o.Env)
	if err != nil {
		return nil, err
	}
	c := &command{ended: make(chan error, 1), cmd: &exec.Cmd{
		Path: program,
		Args: argv,
		Env:  a.o.Env,
		Dir:  "/",
		// It does not outlive the agent, which could not wait for it any more.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}}
	if e.Term != "" {
		c.cmd.Env = append(slices.Clone(a.o.Env), "TERM="+e.Term)
	}
	theirs, err := c.open(e.TTY)
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if err != nil {
		c.close()
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig is sent when the thread that forked ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		wait, err := a.o.Reaper.Start(c.cmd)
		started <- err
		if err == nil {
			c.ended <- wait()
		}
	}()
	if err := <-started; err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// lookPath finds a program as a shell with this environment does.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, v := range env {
		list, is := strings.CutPrefix(v, "PATH=")
		for dir := range strings.SplitSeq(list, ":") {
			if path := dir + "/" + name; is && unix.Access(path, unix.X_OK) == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%.100q is not a program of this machine", name)
}

// open makes what the command reads and writes, and returns the command's own ends.
func (c *command) open(tty bool) (theirs []*os.File, err error) {
	if tty {
		theirs = make([]*os.File, 1)
		if c.terminal, theirs[0], err = openTerminal(); err != nil {
			return nil, err
		}
		c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = theirs[0], theirs[0], theirs[0]
		c.cmd.SysProcAttr.Setctty = true // of descriptor 0
		c.stdin, c.stdout = c.terminal, c.terminal
		return theirs, nil
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.cmd.Stdin, c.stdin, theirs = in, stdin, append(theirs, in)
	stdout, out, err := os.Pipe()
	if err != nil {
		return theirs, err
	}
	c.cmd.Stdout, c.stdout, theirs = out, stdout, append(theirs, out)
	stderr, errs, err := os.Pipe()
	if err != nil {
		return theirs, err
	}
	c.cmd.Stderr, c.stderr, theirs = errs, stderr, append(theirs, errs)
	return theirs, nil
}

// close closes the agent's ends.
func (c *command) close() {
	for _, f := range []*os.File{c.stdin, c.stdout, c.stderr} {
		if f != nil {
			f.Close() // a terminal is closed twice
		}
	}
}

// openTerminal returns both ends of a new terminal.
func openTerminal() (own, theirs *os.File, err error) {
	own, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	var n uint32
	conn, err := own.SyscallConn()
	if err == nil {
		var unlocked, numbered error
		err = conn.Control(func(fd uintptr) {
			unlocked = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
			n, numbered = unix.IoctlGetUint32(int(fd), unix.TIOCGPTN)
		})
		err = errors.Join(err, unlocked, numbered)
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		own.Close()
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	return own, theirs, nil
}

// serve carries what the command reads and writes until it has ended, which it does when the connection ends.
// It returns the exit status.
func (c *command) serve(conn net.Conn, in io.ReadWriter) (status int) {
	defer c.close()
	frames := agentapi.NewFrames(conn)
	_, err := fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", http.StatusSwitchingProtocols,
		http.StatusText(http.StatusSwitchingProtocols), agentapi.ExecProtocol)
	gone := make(chan struct{})
	var outputs, input sync.WaitGroup
	if err == nil {
		for kind, from := range map[agentapi.FrameKind]*os.File{agentapi.FrameStdout: c.stdout, agentapi.FrameStderr: c.stderr} {
			if from != nil {
				outputs.Go(func() { _, _ = io.Copy(frames.To(kind), from) }) // a terminal ends with an error
			}
		}
		input.Go(func() { defer close(gone); c.feed(in, frames) })
	} else {
		close(gone)
	}
	select {
	case err = <-c.ended:
	case <-gone:
		err = c.hangUp()
	}
	late := time.Now().Add(outputGrace)
	for _, f := range []*os.File{c.stdout, c.stderr} {
		if f != nil {
			_ = f.SetReadDeadline(late)
		}
	}
	outputs.Wait()
	status = statusOf(err)
	_ = frames.SendExit(status) // nobody may hear it any more
	_ = conn.Close()
	input.Wait()
	return status
}

// feed hands on what comes for the command, until the connection ends.
func (c *command) feed(in io.Reader, frames *agentapi.Frames) {
	buf := make([]byte, agentapi.MaxFrame)
	for {
		kind, p, err := agentapi.ReadFrame(in, buf)
		switch {
		case err != nil:
			return
		case kind == agentapi.FrameSize && c.terminal != nil:
			c.resize(p)
		case kind == agentapi.FrameStdin && len(p) == 0 && c.terminal == nil:
			_ = c.stdin.Close()
		case kind == agentapi.FrameStdin:
			if len(p) == 0 {
				p = []byte{4} // as who types Ctrl-D
			}
			if !c.write(p, frames) {
				return
			}
		}
	}
}

// write hands input to the command, which may take it late or never. It is false if the connection ends meanwhile.
func (c *command) write(p []byte, frames *agentapi.Frames) bool {
	for {
		_ = c.stdin.SetWriteDeadline(time.Now().Add(blockedFor)) // what has no deadlines takes all at once
		n, err := c.stdin.Write(p)
		if p = p[n:]; !errors.Is(err, os.ErrDeadlineExceeded) {
			return true // a command need not read
		}
		if frames.Send(agentapi.FrameStdout, nil) != nil {
			return false
		}
	}
}

func (c *command) resize(p []byte) {
	rows, cols, err := agentapi.SizeOf(p)
	if err != nil {
		return
	}
	conn, err := c.terminal.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { // it has ended otherwise
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// hangUp ends the command, and waits for that.
func (c *command) hangUp() error {
	_ = unix.Kill(-c.cmd.Process.Pid, unix.SIGHUP) // not collected yet: the group is this one
	timer := time.NewTimer(hangUpGrace)
	defer timer.Stop()
	select {
	case err := <-c.ended:
		return err
	case <-timer.C:
	}
	_ = unix.Kill(-c.cmd.Process.Pid, unix.SIGKILL)
	return <-c.ended
}

// statusOf is the exit status of a command as a shell tells it.
func statusOf(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return 255
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return exit.ExitCode()
}

// Logs answers for what is below agentapi.PathLogs, by the name of the log in the path.
func (a *Access) Logs(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("log")
	file, known := a.o.Logs[name]
	if !known {
		http.Error(w, fmt.Sprintf("a machine has no log %.64q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(a.o.Logs)), ", ")),
			http.StatusNotFound)
		return
	}
	lines, err := tailOf(r.URL.Query().Get(agentapi.ParamTail))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text, err := lastLines(file, lines)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		http.Error(w, fmt.Sprintf("this machine has no log of %s", name), http.StatusNotFound)
	case err != nil:
		http.Error(w, fmt.Sprintf("read the log of %s: %v", name, err), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(text) // who asked may have gone
	}
}
