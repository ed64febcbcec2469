package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/cloud"
)

const (
	// DefaultNotice is how long before its end a machine is told of, if nothing
	// else was said: as long as EC2 gives to spot instances.
	DefaultNotice = 2 * time.Minute
	// interruptionPoll is how often rehearsed interruptions are looked for.
	interruptionPoll = time.Second
	reason           = "an interruption is rehearsed"
)

// Interrupt rehearses that the cloud takes a machine back at a time, which is
// announced at once by the Cloud of cfg.StateDir, of whichever process. A second
// time for the same machine replaces the first.
func Interrupt(cfg Config, id string, at time.Time) error {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return err
	}
	if !instanceID.MatchString(id) {
		return fmt.Errorf("interrupt: %w", notAnID(id))
	}
	if _, err := os.Stat(cfg.MachineDir(id)); err != nil {
		return fmt.Errorf("interrupt %s: there is no such machine: %w", id, err)
	}
	if err := os.MkdirAll(cfg.interruptionsDir(), 0o700); err != nil {
		return fmt.Errorf("interrupt %s: %w", id, err)
	}
	text := at.UTC().Format(time.RFC3339Nano) + "\n"
	if err := atomicfile.Write(filepath.Join(cfg.interruptionsDir(), id), []byte(text), 0o600); err != nil {
		return fmt.Errorf("interrupt %s: %w", id, err)
	}
	return nil
}

// Interruptions announces the machines named by files in the folder
// interruptions of the state folder, and takes each at its time, as if it had
// vanished. A file's name is the instance ID. It holds the time in RFC 3339;
// when it is empty, the time is DefaultNotice after it was written. Each is
// announced once, and once more by a Kip that was started meanwhile or when the
// file changes. A file goes with its machine.
func (c *Cloud) Interruptions(ctx context.Context, l cloud.Listener) error {
	seen := map[string]string{} // instance ID → the text that was dealt with
	for {
		if err := c.interrupt(seen, l.Notify); err != nil {
			return fmt.Errorf("look for interruptions: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.ctx.Done():
			return errClosed
		case <-c.cfg.Clock.After(interruptionPoll):
		}
	}
}

// interrupt looks once at all files.
func (c *Cloud) interrupt(seen map[string]string, notice func(cloud.Interruption)) error {
	entries, err := os.ReadDir(c.cfg.interruptionsDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	maps.DeleteFunc(seen, func(id, _ string) bool {
		return !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == id })
	})
	for _, e := range entries {
		id := e.Name()
		if !instanceID.MatchString(id) {
			continue // such as one that is being written
		}
		path := filepath.Join(c.cfg.interruptionsDir(), id)
		c.mu.Lock()
		m := c.machines[id]
		c.mu.Unlock()
		if m == nil {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // taken back
		}
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, written := strings.TrimSpace(string(content)), info.ModTime()
		now := c.cfg.Clock.Now()
		if text == "" && now.Sub(written) < interruptionPoll {
			continue // its writer may not be done
		}
		at, err := interruptionTime(text, written)
		if last, known := seen[id]; !known || last != text {
			seen[id] = text
			if err != nil {
				c.cfg.Log.Warn("an interruption is not rehearsed", "instance", id, "file", path, "err", err)
			} else {
				notice(cloud.Interruption{InstanceID: id, At: at, Reason: reason})
			}
		}
		if err == nil && !now.Before(at) {
			if err := c.take(m); err != nil {
				return fmt.Errorf("take %s: %w", id, err)
			}
		}
	}
	return nil
}

// interruptionTime reads what is in a file that was last written at some time.
func interruptionTime(text string, written time.Time) (time.Time, error) {
	if text == "" {
		return written.Add(DefaultNotice), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no time: want one such as 2026-01-31T15:04:05Z, or nothing", text)
	}
	return at, nil
}

// take makes a machine vanish, at once or at a later look when it is just being
// booted or stopped.
func (c *Cloud) take(m *machine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.rec.Instance.State {
	case cloud.Running:
		return c.kind.Kill(m.id, m.process)
	case cloud.Stopped:
		return c.terminate(m)
	}
	return nil
}
