package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/backoff"
)

// LoopMajor is the kernel's number for loop devices (devices.txt).
const LoopMajor = 7

// Loop is a loop device that has a file.
type Loop struct {
	N int
	// File is the file's path as the kernel tells it. It begins at the root of the mount by which the file was opened, if that mount is
	// in nobody's tree any more: a machine has left its launcher's root, and a container has ended.
	File string
}

// Loops returns the loop devices of this host that have files.
func Loops() ([]Loop, error) {
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var all []Loop
	for _, path := range backing {
		file, err := os.ReadFile(path)
		if err != nil {
			continue // freed meanwhile
		}
		n, err := strconv.Atoi(strings.TrimPrefix(strings.Split(path, "/")[3], "loop"))
		if err != nil {
			return nil, fmt.Errorf("read the number of %s: %w", path, err)
		}
		all = append(all, Loop{n, strings.TrimSpace(string(file))})
	}
	return all, nil
}

// Has reports whether the loop device has this file, by whatever path.
func (l Loop) Has(file string) (bool, error) {
	if l.File == file || filepath.Base(l.File) != filepath.Base(file) {
		return l.File == file, nil
	}
	var want unix.Stat_t
	if err := unix.Stat(file, &want); errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look at %s: %w", file, err)
	}
	info, err := l.Status(filepath.Dir(file))
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
		return false, nil // freed meanwhile
	}
	return err == nil && info.Device == want.Dev && info.Inode == want.Ino, err
}

// Status asks the kernel about the loop device. The folder is that of OpenLoop.
func (l Loop) Status(dir string) (*unix.LoopInfo64, error) {
	_, f, err := OpenLoop(l.N, dir, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open loop device %d: %w", l.N, err)
	}
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("ask for the file of loop device %d: %w", l.N, err)
	}
	return info, nil
}

// OpenLoop opens a loop device. Where /dev does not follow the kernel, as in a
// container, it makes a node in dir.
func OpenLoop(n int, dir string, flags int) (path string, f *os.File, err error) {
	path = "/dev/loop" + strconv.Itoa(n)
	if f, err = os.OpenFile(path, flags, 0); !errors.Is(err, fs.ErrNotExist) {
		return path, f, err
	}
	path = filepath.Join(dir, "loop"+strconv.Itoa(n))
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(LoopMajor, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
		return path, nil, err
	}
	f, err = os.OpenFile(path, flags, 0)
	return path, f, err
}

// LoopsOf returns the loop devices of files under dir: of a machine's disk where dir is its folder, and of all disks of a cloud
// where dir is its StateDir.
func LoopsOf(dir string) ([]string, error) {
	all, err := Loops()
	if err != nil {
		return nil, err
	}
	files := []string{filepath.Join(dir, DiskImage)}
	more, err := filepath.Glob(filepath.Join(dir, "*", "*", DiskImage))
	if err != nil {
		return nil, err
	}
	files = append(files, more...)
	var loops []string
	for _, l := range all {
		has := strings.HasPrefix(l.File, dir+"/")
		for i := 0; i < len(files) && !has; i++ {
			if has, err = l.Has(files[i]); err != nil {
				return nil, err
			}
		}
		if has {
			loops = append(loops, "loop"+strconv.Itoa(l.N))
		}
	}
	return loops, nil
}

// freeDisk waits until no loop device has the machine's disk: the kernel
// unmounts it some time after the machine's last process. Before, what the
// machine wrote may not be there, and mounted once more it would be destroyed.
func freeDisk(ctx context.Context, clk clock.Clock, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, DiskImage)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for tries := 1; ; tries++ {
		loops, err := LoopsOf(dir)
		if err != nil {
			return fmt.Errorf("look for the loop device of %s: %w", dir, err)
		}
		if len(loops) == 0 {
			return nil
		}
		if backoff.Random(nil).Wait(ctx, clk, tries, time.Millisecond, 100*time.Millisecond) != nil {
			return fmt.Errorf("%w: loop devices %v still have the disk in %s", ctx.Err(), loops, dir)
		}
	}
}
