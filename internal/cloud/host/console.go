package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/elotl/kip/internal/cloud"
)

// A machine writes its console log itself, so that it goes on without Kip.
// Kip cuts it back whenever it lists machines.
const (
	maxConsole  = 1 << 20 // bytes above which the log is cut
	keptConsole = 64 << 10
	// loggedConsole is how much of it is logged of a machine that ended by itself: a kernel's panic.
	loggedConsole = 4 << 10
	// keptEnded is of how many machines that have ended the console is kept, in memory: why one ended is
	// asked for once it has.
	keptEnded = 16
)

// ended is what a machine that has ended had written to its console.
type ended struct {
	id   string
	text []byte
}

// keepConsole keeps what a machine wrote, whose folder is about to go. One that only stops keeps it itself.
func (c *Cloud) keepConsole(m *machine) {
	c.mu.Lock()
	stops := m.rec.Instance.State == cloud.Stopping
	c.mu.Unlock()
	if stops {
		return
	}
	text, err := readTail(c.cfg.consolePath(m.id))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.cfg.Log.Warn("the console of a machine that has ended is lost", "instance", m.id, "err", err)
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.consoles = append(c.consoles, ended{m.id, text})
	c.consoles = slices.Delete(c.consoles, 0, max(0, len(c.consoles)-keptEnded))
}

// lastWords is the end of what a machine has written, or why it cannot be had.
func (c *Cloud) lastWords(id string) string {
	text, err := readTail(c.cfg.consolePath(id))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-loggedConsole):])
}

// consoleOf is what a machine that has ended had written.
func (c *Cloud) consoleOf(id string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := slices.IndexFunc(c.consoles, func(e ended) bool { return e.id == id })
	if n < 0 {
		return nil, false
	}
	return slices.Clone(c.consoles[n].text), true
}

// boundConsole cuts a log that has grown too long down to its last part. The
// writer appends, so it goes on at the new end. What it writes during the cut
// may be lost.
func boundConsole(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= maxConsole {
		return nil
	}
	if err != nil {
		return err
	}
	tail, err := readTail(path)
	if err != nil {
		return err
	}
	if err := os.Truncate(path, 0); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(tail)
	return err
}

func readTail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, size-keptConsole), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, keptConsole)) // it may grow meanwhile
}

// Console returns the last 64 KiB that a machine wrote to its console, also of those that have ended last.
func (c *Cloud) Console(_ context.Context, id string) ([]byte, error) {
	if !instanceID.MatchString(id) {
		return nil, fmt.Errorf("console: %w", notAnID(id))
	}
	b, err := readTail(c.cfg.consolePath(id))
	if errors.Is(err, fs.ErrNotExist) {
		if _, there := os.Stat(c.cfg.MachineDir(id)); there == nil {
			return nil, nil // it has not written to it yet
		}
		if text, kept := c.consoleOf(id); kept {
			return text, nil
		}
		err = cloud.No(cloud.ErrNotFound, cloud.Scope{}, err)
	}
	if err != nil {
		return nil, fmt.Errorf("console of %s: %w", id, err)
	}
	return b, nil
}
