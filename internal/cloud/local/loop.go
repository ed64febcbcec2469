package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
)

// A machine has the disk of a volume as a loop device, with a node of it in the
// machine's own /dev.

const (
	// deviceDir is where a machine finds its disks.
	deviceDir = "/dev/disk/by-id"
	// freeTimeout bounds the wait for what is on its way out of use.
	freeTimeout = 2 * time.Second
)

func deviceName(id string) string { return "kip-" + id }

// loop returns the number of the disk's loop device, which it makes if there is
// none.
func loop(d host.Disk) (int, error) {
	loops, err := loopsOfDisk(d)
	if err != nil {
		return 0, err
	}
	for _, l := range loops {
		if !l.nested {
			return l.n, nil
		}
	}
	f, err := os.OpenFile(d.File, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("the kernel has no loop devices (modprobe loop): %w", err)
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return 0, fmt.Errorf("find a free loop device: %w", err)
		}
		_, loop, err := host.OpenLoop(n, filepath.Dir(d.File), os.O_RDWR)
		if err != nil {
			return 0, fmt.Errorf("open loop device %d: %w", n, err)
		}
		config := unix.LoopConfig{Fd: uint32(f.Fd())}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], d.File)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		loop.Close()
		if errors.Is(err, unix.EBUSY) {
			continue // somebody else took it meanwhile
		}
		return n, err
	}
}

// diskLoop is a loop device of a disk. A nested one has the disk's device for its
// file: a kubelet holds block volumes open that way.
type diskLoop struct {
	n      int
	nested bool
}

// loopsOfDisk returns the loop devices that have the disk, nested ones first.
func loopsOfDisk(d host.Disk) ([]diskLoop, error) {
	all, err := host.Loops()
	if err != nil {
		return nil, err
	}
	var own []diskLoop
	holds := map[uint64][]int{} // loop devices by the device that is their file
	for _, l := range all {
		has, err := l.Has(d.File)
		if err != nil {
			return nil, err
		}
		if has {
			own = append(own, diskLoop{n: l.N})
			continue
		}
		// Its path is one in the machine: it does not say which device it is.
		if info, err := l.Status(filepath.Dir(d.File)); err == nil && info.Rdevice != 0 {
			holds[info.Rdevice] = append(holds[info.Rdevice], l.N)
		}
	}
	var nested []diskLoop
	for _, l := range own {
		for _, n := range holds[unix.Mkdev(host.LoopMajor, uint32(l.n))] {
			nested = append(nested, diskLoop{n: n, nested: true})
		}
	}
	return append(nested, own...), nil
}

// unloop frees the loop devices of a disk when nobody uses them, and waits a
// little for that. ErrInUse when somebody goes on.
func (k *kind) unloop(ctx context.Context, d host.Disk) error {
	deadline := k.cfg.Clock.Now().Add(freeTimeout)
	for tries := 1; ; tries++ {
		loops, err := loopsOfDisk(d)
		if err != nil || len(loops) == 0 {
			return err
		}
		var busy error
		for _, l := range loops {
			if busy = freeLoop(d, l.n); busy != nil {
				break
			}
		}
		if busy == nil {
			continue // look whether they are gone
		}
		if !errors.Is(busy, unix.EBUSY) {
			return busy
		}
		if k.cfg.Clock.Now().After(deadline) {
			return fmt.Errorf("%w: loop devices %v: %w", cloud.ErrInUse, loops, busy)
		}
		if backoff.Random(nil).Wait(ctx, k.cfg.Clock, tries, time.Millisecond, 50*time.Millisecond) != nil {
			return fmt.Errorf("%w: loop devices %v are in use", ctx.Err(), loops)
		}
	}
}

// freeLoop takes the file from one loop device, once all is written to it.
func freeLoop(d host.Disk, n int) error {
	// Exclusive: it is refused while a file system of the device is mounted.
	_, loop, err := host.OpenLoop(n, filepath.Dir(d.File), os.O_RDWR|unix.O_EXCL)
	if err != nil {
		return err
	}
	// It may have been freed meanwhile, and be another disk's. As long as it is held, nobody takes it.
	now, err := loopsOfDisk(d)
	if err != nil || !slices.ContainsFunc(now, func(l diskLoop) bool { return l.n == n }) {
		return errors.Join(err, loop.Close())
	}
	err = errors.Join(loop.Sync(), unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0))
	// The kernel lets go when the last who has it open does; until then it
	// answers like a device that is in use.
	if closed := loop.Close(); err == nil {
		err = closed
	}
	if errors.Is(err, unix.ENXIO) {
		return nil // it had been freed already
	}
	if err == nil {
		if text, readErr := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", n)); readErr == nil &&
			strings.Contains(string(text), d.ID) {
			return fmt.Errorf("loop%d is open: %w", n, unix.EBUSY)
		}
	}
	return err
}

// openMachine opens a folder in a machine as the machine sees it. Links in it
// lead nowhere outside of it, whatever the machine has made of them.
func openMachine(init host.Process, dir string, how *unix.OpenHow) (fd int, err error) {
	h, err := init.Open()
	if err != nil {
		return -1, err
	}
	defer h.Close()
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", init.PID), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	// Only now: the process has been itself until after its root was opened.
	if live, err := init.Open(); err != nil {
		return -1, err
	} else {
		live.Close()
	}
	how.Resolve |= unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	return unix.Openat2(root, dir, how)
}

// showDevice makes the node of a loop device in the machine.
func showDevice(init host.Process, id string, n int) error {
	dir := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC}
	fd, err := openMachine(init, deviceDir, &dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	want := unix.Mkdev(host.LoopMajor, uint32(n))
	err = unix.Mknodat(fd, deviceName(id), unix.S_IFBLK|0o600, int(want))
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	var have unix.Stat_t
	if err := unix.Fstatat(fd, deviceName(id), &have, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if have.Mode&unix.S_IFMT == unix.S_IFBLK && have.Rdev == want {
		return nil
	}
	if err := unix.Unlinkat(fd, deviceName(id), 0); err != nil {
		return err
	}
	return unix.Mknodat(fd, deviceName(id), unix.S_IFBLK|0o600, int(want))
}

// hideDevice removes the node. A machine that is gone has none.
func hideDevice(init host.Process, id string) error {
	dir := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC}
	fd, err := openMachine(init, deviceDir, &dir)
	if errors.Is(err, host.ErrGone) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Unlinkat(fd, deviceName(id), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
