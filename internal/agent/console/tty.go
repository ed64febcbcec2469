package console

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// device is the machine's console.
	device = "/dev/console"
	// writeLimit is how long one write waits for a console that takes nothing: a serial line sends the
	// 4 KiB that its driver holds in 0.4 s. stuckLimit is that of the writes after it, until one succeeds.
	writeLimit = 10 * time.Second
	stuckLimit = 50 * time.Millisecond
)

// Output returns where a machine's first process writes: its console or, if that cannot be opened,
// and in any other process, stderr. A console that takes nothing loses lines, and blocks nobody: who
// stops one with Ctrl-S, as on EC2's serial console, would stop the agent, and the machine's end.
func Output() io.Writer {
	if os.Getpid() != 1 {
		return os.Stderr
	}
	t, err := open(device)
	if err != nil {
		New(os.Stderr).Say("%v", err)
		return os.Stderr
	}
	return t
}

// tty is a terminal that blocks no writer for long.
type tty struct {
	limit time.Duration

	mu    sync.Mutex
	file  *os.File
	stuck bool
}

// open opens a terminal, and has it go on whatever Ctrl-S says. The file is its own, so stderr stays
// as it is for the report of a crash.
func open(path string) (*tty, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the console %s: %w", path, err)
	}
	// To clear IXON also lets a terminal go on that is stopped (n_tty_set_termios).
	settings, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		settings.Iflag &^= unix.IXON
		err = unix.IoctlSetTermios(fd, unix.TCSETS, settings)
	}
	t := &tty{limit: writeLimit, file: os.NewFile(uintptr(fd), path)}
	if err = errors.Join(err, t.file.SetWriteDeadline(time.Time{})); err != nil { // one without deadlines is of no use
		return nil, errors.Join(fmt.Errorf("prepare the console %s: %w", path, err), t.file.Close())
	}
	return t, nil
}

// Write writes a line, or what of it the terminal takes in time.
func (t *tty) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	limit := t.limit
	if t.stuck {
		limit = stuckLimit
	}
	if err := t.file.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return 0, err
	}
	n, err := t.file.Write(b)
	t.stuck = errors.Is(err, os.ErrDeadlineExceeded)
	return n, err
}
