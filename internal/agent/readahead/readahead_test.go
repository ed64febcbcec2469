package readahead

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// some makes files of these sizes.
func some(t *testing.T, sizes ...int64) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	for i, size := range sizes {
		p := filepath.Join(dir, string(rune('a'+i)))
		if err := errors.Join(os.WriteFile(p, nil, 0o644), os.Truncate(p, size)); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, p)
	}
	return paths
}

// A new disk takes a second for the first touch of each block, and who boots waits behind all reads that are under
// way: many may touch a block, and few read it whole.
func TestManyBlocksAreTouchedAtOnceAndFewAreRead(t *testing.T) {
	const blocks = 4 * touches
	paths := some(t, chunk*blocks/2-1, 0, chunk*blocks/2)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var touching, reading, mostTouching, mostReading int
		bytes := map[string]int64{}
		began, touched := time.Now(), time.Duration(0)
		err := files(t.Context(), 1<<40, func(p piece) error {
			now, most := &reading, &mostReading
			if p.length == touch {
				now, most = &touching, &mostTouching
			}
			mu.Lock()
			*now++
			*most = max(*most, *now)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			*now--
			if p.length == touch {
				touched = max(touched, time.Since(began))
			} else {
				bytes[p.file.Name()] += p.length
			}
			mu.Unlock()
			return nil
		}, append(paths, filepath.Join(t.TempDir(), "not there")))
		if err != nil || mostTouching != touches || mostReading != reads || touched != blocks/touches*time.Second {
			t.Errorf("%d blocks were touched %d at once, and read %d at once; the last touch was after %v (%v)", blocks, mostTouching,
				mostReading, touched, err)
		}
		if bytes[paths[0]] != chunk*blocks/2-1 || bytes[paths[2]] != chunk*blocks/2 {
			t.Errorf("of the files these bytes were read: %v", bytes)
		}
	})
}

func TestNoMoreIsReadThanMemoryIsToSpare(t *testing.T) {
	paths := some(t, 3*chunk, 3*chunk)
	var mu sync.Mutex
	var sum int64
	err := files(t.Context(), 4*chunk+2*touch, func(p piece) error {
		mu.Lock()
		defer mu.Unlock()
		if p.length != touch {
			sum += p.length
		}
		return nil
	}, paths)
	if err != nil || sum != 4*chunk+2*touch {
		t.Errorf("%d bytes are read (%v), want %d", sum, err, 4*chunk+2*touch)
	}
}

func TestReadingAheadEndsWithItsContext(t *testing.T) {
	paths := some(t, 100*touches*chunk)
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer end()
		began := time.Now()
		err := files(ctx, 1<<40, func(piece) error { time.Sleep(time.Second); return nil }, paths)
		if err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("it ends after %v (%v), want the end of the reads that had begun", time.Since(began), err)
		}
	})
}

func TestABadDiskIsToldAndLeft(t *testing.T) {
	bad := errors.New("input/output error")
	var asked atomic.Int64
	err := files(t.Context(), 1<<40, func(piece) error { asked.Add(1); return bad }, some(t, 100*touches*chunk))
	if !errors.Is(err, bad) || asked.Load() > touches {
		t.Errorf("after %d reads it says %v", asked.Load(), err)
	}
}

// With one processor, each turn of a reader is one that the boot does not have.
func TestWhatReadsAheadHasTheLowestPriority(t *testing.T) {
	const ofNice = 20 // as the kernel returns it
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = files(t.Context(), 1<<40, func(piece) error {
		if got, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || ofNice-got != lowest {
			return fmt.Errorf("nice %d, %w", ofNice-got, err)
		}
		return nil
	}, some(t, 10*touches*chunk))
	if err != nil {
		t.Error(err)
	}
	for range 100 { // on whatever thread
		if got, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || got != own {
			t.Fatalf("what asks for it has nice %d, before %d (%v)", ofNice-got, ofNice-own, err)
		}
		runtime.Gosched()
	}
}

// The kernel itself says what is in its cache.
func TestFilesAreInTheCacheAfterIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := make([]byte, 5*chunk+1)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cached := func() int {
		t.Helper()
		pages := make([]byte, (len(content)+os.Getpagesize()-1)/os.Getpagesize())
		m, err := unix.Mmap(int(f.Fd()), 0, len(content), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(m) }()
		if err := mincore(m, pages); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, p := range pages {
			n += int(p & 1)
		}
		return n
	}
	if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
	all := (len(content) + os.Getpagesize() - 1) / os.Getpagesize()
	if cached() == all {
		t.Skip("the file system of temporary files is memory")
	}
	if err := Files(t.Context(), 1<<40, path); err != nil {
		t.Fatal(err)
	}
	if n := cached(); n != all {
		t.Errorf("%d pages of %d are in the cache", n, all)
	}
}
