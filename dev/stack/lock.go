package stack

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Holder is who holds a lock.
type Holder struct {
	PID     int       `json:"pid"`
	Command string    `json:"command"` // as typed, for people
	Since   time.Time `json:"since"`
}

// HeldError says that another process holds the lock.
type HeldError struct {
	Path   string
	Holder Holder // its PID is 0 when the holder has not yet said who it is
}

func (e *HeldError) Error() string {
	if e.Holder.PID == 0 {
		return fmt.Sprintf("another process holds %s", e.Path)
	}
	return fmt.Sprintf("%s is already running: process %d, since %s; stop it with Ctrl-C where it runs, or with: kill %d",
		e.Holder.Command, e.Holder.PID, e.Holder.Since.Local().Format("2006-01-02 15:04:05"), e.Holder.PID)
}

// Lock is held until it is released or its process ends, however it ends.
type Lock struct{ f *os.File }

// acquire takes the lock at path for holder, or fails with *HeldError.
func acquire(path string, holder Holder) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		held := &HeldError{Path: path}
		// What cannot be read is being written: the holder is new.
		_ = json.NewDecoder(f).Decode(&held.Holder)
		return nil, held
	}
	data, err := json.Marshal(holder)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(append(data, '\n'), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", path, err), f.Close())
	}
	return &Lock{f: f}, nil
}

// Release gives the lock up. The file stays: removing it would let two
// processes lock two files of the same name.
func (l *Lock) Release() error {
	return errors.Join(l.f.Truncate(0), l.f.Close())
}
