package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/elotl/kip/internal/cloud"
)

// A machine writes its console log itself, so that it goes on without Kip.
// Kip cuts it back whenever it lists machines.
const (
	maxConsole  = 1 << 20 // bytes above which the log is cut
	keptConsole = 64 << 10
)

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
	return io.ReadAll(f)
}

// Console returns the last 64 KiB that a machine wrote to its console.
func (c *Cloud) Console(_ context.Context, id string) ([]byte, error) {
	if !instanceID.MatchString(id) {
		return nil, fmt.Errorf("console: %w", notAnID(id))
	}
	b, err := readTail(c.cfg.consolePath(id))
	if errors.Is(err, fs.ErrNotExist) {
		if _, there := os.Stat(c.cfg.MachineDir(id)); there == nil {
			return nil, nil // it has not written to it yet
		}
		err = cloud.No(cloud.ErrNotFound, cloud.Scope{}, err)
	}
	if err != nil {
		return nil, fmt.Errorf("console of %s: %w", id, err)
	}
	return b, nil
}
