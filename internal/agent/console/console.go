// Package console writes what a machine does while it boots to its console, a line a
// step, so that whoever sees nothing else of a machine sees where it stands. It decides
// nothing.
package console

import (
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agentapi"
)

// Console is a machine's. It may be used by several goroutines at once.
type Console struct {
	// now is the time since the kernel started.
	now func() time.Duration

	mu  sync.Mutex
	out io.Writer
}

// New returns the console behind out.
func New(out io.Writer) *Console { return &Console{now: SinceBoot, out: out} }

// SinceBoot is the time since the kernel started, as it counts: what firmware and a
// boot loader take is not in it.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // no Linux is without it
	}
	return time.Duration(t.Nano())
}

// InitBegan is the environment variable by which the first init tells the root's when it
// began, as SinceBoot has it, in Go's notation.
const InitBegan = "KIP_INIT_BEGAN"

// Say writes one line.
func (c *Console) Say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// In a kernel's form. Nobody is there to tell of an error, and the machine boots on.
	_, _ = fmt.Fprintf(c.out, "[%12.6f] "+agentapi.ConsolePrefix+"%s\r\n", c.now().Seconds(), fmt.Sprintf(format, args...))
}

// Step does one step and writes how long it took, or why it failed.
func (c *Console) Step(name string, do func() error) error {
	began := c.now()
	if err := do(); err != nil {
		c.Say("%s: FAILED after %.3f s: %v", name, (c.now() - began).Seconds(), err)
		return fmt.Errorf("%s: %w", name, err)
	}
	c.Say("%s (%.3f s)", name, (c.now() - began).Seconds())
	return nil
}
