package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap/zapcore"
)

// death is the end of an embedded etcd. It is the hook for what etcd logs as
// fatal, as it does when its disk fails: by default that is an os.Exit, of Kip.
type death struct {
	once  sync.Once
	dead  chan struct{}
	err   error // set before dead is closed
	fatal atomic.Bool
}

var _ zapcore.CheckWriteHook = (*death)(nil)

func (d *death) because(err error) {
	d.once.Do(func() {
		d.err = err
		close(d.dead)
	})
}

// OnWrite never returns: etcd counts on that, and the locks that the goroutine
// holds guard what is half done.
func (d *death) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := fmt.Errorf("etcd died: %s", entry.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w: make room on the disk of etcd.internal.dataDir and start Kip again: %w", ErrNoSpace, err)
	}
	d.fatal.Store(true)
	d.because(err)
	select {}
}

// minFree is the free space, in bytes, below which an embedded etcd is not
// written to: a segment of its log, 64 MiB, which it claims ahead, and two
// steps of 16 MiB by which its database grows.
const minFree = 96 << 20

// roomIn returns a check that the disk of dir has room for another write. It
// comes before etcd, which does not survive a full disk.
func roomIn(dir string) func() error {
	return func() error {
		free, err := freeIn(dir)
		if err != nil {
			return fmt.Errorf("see how much space is left in %s: %w", dir, err)
		}
		if free < minFree {
			return fmt.Errorf("%w: the disk of %s has %d MiB left, a write needs %d; make room", ErrNoSpace, dir, free>>20, minFree>>20)
		}
		return nil
	}
}
