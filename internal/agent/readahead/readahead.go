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
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// chunk is what one read brings in. A cloud's disk that was made of a snapshot fetches each block
	// when it is first touched, at EBS one of 512 KiB ("Amazon EBS volume initialization" in
	// the EBS guide; BlockSize in StartSnapshot of EBS direct APIs).
	chunk = 512 << 10
	// atOnce is how many reads are under way: such a first touch is latency and not bandwidth. All
	// of them together are 12 MiB, behind which a read that somebody waits for takes its turn.
	atOnce = 24
	// lowest is the priority of what reads, as nice has it.
	lowest = 19
)

// Files reads the files one after another, up to this many bytes in all, until ctx ends. Files that
// are not there are left out. It returns once the reads that are under way have ended.
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
	pieces := make(chan piece)
	failed := make(chan error, atOnce)
	var readers sync.WaitGroup
	for range atOnce {
		readers.Go(func() {
			// What boots comes first: this thread has the lowest priority, and ends with its goroutine.
			runtime.LockOSThread()
			err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowest)
			for p := range pieces {
				if err == nil { // else its disk is bad, and the reads of those who need it say so, too
					err = fetch(p)
				}
			}
			failed <- err
		})
	}
	var open []*os.File
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		open = append(open, f)
		n, err := send(ctx, pieces, f, most)
		errs = append(errs, err)
		most -= n
	}
	close(pieces)
	readers.Wait()
	for range atOnce {
		errs = append(errs, <-failed)
	}
	for _, f := range open {
		errs = append(errs, f.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("read files ahead: %w", err)
	}
	return nil
}

// send hands the pieces of a file to the readers, and returns how many bytes they have.
func send(ctx context.Context, to chan<- piece, f *os.File, most int64) (sent int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	for end := min(info.Size(), most); sent < end; {
		p := piece{f, sent, min(chunk, end-sent)}
		select {
		case to <- p:
			sent += p.length
		case <-ctx.Done():
			return sent, nil
		}
	}
	return sent, nil
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
