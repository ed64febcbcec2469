package firstboot

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// logBytes is how much of the scripts' output is kept in its file, and once more in the
	// one before it (NAME.1).
	logBytes = 1 << 20
	// logEvery is how often it is looked whether the file has more. Until then it may.
	logEvery = 10 * time.Second
)

func (m *Machine) logFile() string { return filepath.Join(m.o.LogDir, LogName) }

// KeepLog bounds the file of the scripts' output until ctx ends. What a script has left
// running, perhaps under an earlier agent, goes on writing to it.
func (m *Machine) KeepLog(ctx context.Context) {
	ticker := time.NewTicker(logEvery)
	defer ticker.Stop()
	for {
		if err := m.boundLog(); err != nil {
			m.o.Log.Warn("bound the output of the cloud-init file's scripts", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// boundLog moves the end of a file that is too long to the one before it. It empties the file
// and does not replace it: who writes has it open. What is written meanwhile may be lost. No link is
// followed: a pod may have the folder by hostPath.
func (m *Machine) boundLog() error {
	log, err := os.OpenFile(m.logFile(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil || info.Size() <= logBytes {
		return err
	}
	before := m.logFile() + ".1"
	if err := os.Remove(before); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, log.Truncate(0))
	}
	old, err := os.OpenFile(before, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = io.Copy(old, io.NewSectionReader(log, info.Size()-logBytes, logBytes))
		err = errors.Join(err, old.Close())
	}
	return errors.Join(err, log.Truncate(0)) // also on a full disk, which it may have filled
}
