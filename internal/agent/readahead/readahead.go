// Package readahead brings files into the kernel's cache before they are needed. It knows
// nothing of what a file is for.
package readahead

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	// chunk is what is touched at once. A cloud's disk that was made of a snapshot fetches each block when
	// it is first touched, at EBS one of 512 KiB ("Amazon EBS volume initialization" in the EBS
	// guide; BlockSize in StartSnapshot of EBS direct APIs).
	chunk = 512 << 10
	// touch is how much of each block is read first, many at once: such a read is latency, and no bandwidth.
	touch, touches = 4 << 10, 24
	// reads is how many whole blocks are read at once after that: enough for a disk's bandwidth, and
	// whoever boots waits behind 1 MiB at most.
	reads = 2
	// lowest is the priority of what reads, as nice has it.
	lowest = 19
)

// Files touches each block of the files, and then reads the files one after another, up to this many
// bytes in all, until ctx ends. Files that are not there are left out. It returns once the reads that are
// under way have ended.
func Files(ctx context.Context, most int64, paths ...string) error {
	return files(ctx, most, fetch, paths)
}

// piece is a part of a file.
type piece struct {
	file       *os.File
	at, length int64
}

func files(ctx context.Context, most int64, fetch func(piece) error, paths []string) error {
	var errs []error
	var pieces []piece
	for _, path := range paths {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var info fs.FileInfo
		if err == nil {
			defer f.Close()
			info, err = f.Stat()
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for at, end := int64(0), min(info.Size(), most); at < end; at += chunk {
			pieces = append(pieces, piece{f, at, min(chunk, end-at)})
			most -= min(chunk, end-at)
		}
	}
	err := inTurn(ctx, touches, pieces, func(p piece) error {
		p.length = min(p.length, touch)
		return fetch(p)
	})
	if err == nil {
		err = inTurn(ctx, reads, pieces, fetch)
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("read files ahead: %w", err)
	}
	return nil
}

// inTurn fetches pieces, so many at once, until ctx ends or a disk turns out to be bad: whoever needs what is
// left says so, too.
func inTurn(ctx context.Context, atOnce int, pieces []piece, fetch func(piece) error) error {
	readers, ctx := errgroup.WithContext(ctx)
	next := make(chan piece)
	for range atOnce {
		readers.Go(func() error {
			// What boots comes first: this thread has the lowest priority, and ends with its goroutine.
			runtime.LockOSThread()
			if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowest); err != nil {
				return err
			}
			for p := range next {
				if err := fetch(p); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for n := 0; n < len(pieces) && ctx.Err() == nil; n++ {
		select {
		case next <- pieces[n]:
		case <-ctx.Done():
		}
	}
	close(next)
	return readers.Wait()
}

// fetch has the kernel read a piece into its cache, and waits for its end.
func fetch(p piece) error {
	// The kernel begins to read all of it, and copies nothing to this process.
	if err := unix.Fadvise(int(p.file.Fd()), p.at, p.length, unix.FADV_WILLNEED); err != nil {
		return fmt.Errorf("%s: %w", p.file.Name(), err)
	}
	_, err := p.file.ReadAt(make([]byte, 1), p.at+p.length-1)
	return err
}
