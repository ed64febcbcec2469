package disks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// The kernel's numbers of loop devices and of what hands them out (devices.txt).
const (
	loopMajor               = 7
	miscMajor, controlMinor = 10, 237
)

// LosetupProgram is the name by which a kubelet looks for losetup.
const LosetupProgram = "losetup"

// Losetup is as much of losetup as a kubelet uses to hold the device of a block
// volume open: -f FILE makes a loop device of it, -d DEVICE frees one. The nodes
// of loop devices are not in a cell's /dev; it makes what it needs. It reads
// os.Args and returns an exit code.
func Losetup() int {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "-f":
		err = loop("/dev", args[1])
	case len(args) == 2 && args[0] == "-d":
		err = unloop(args[1])
	default:
		err = errors.New("usage: losetup -f FILE, or -d DEVICE")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "losetup:", err)
		return 1
	}
	return 0
}

// loop makes a loop device of a file, or of another device, with a node in dev.
func loop(dev, file string) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		f, err = os.Open(file)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	control, err := node(filepath.Join(dev, "loop-control"), unix.S_IFCHR, unix.Mkdev(miscMajor, controlMinor))
	if err != nil {
		return fmt.Errorf("the kernel has no loop devices (modprobe loop): %w", err)
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := node(filepath.Join(dev, "loop"+strconv.Itoa(n)), unix.S_IFBLK, unix.Mkdev(loopMajor, uint32(n)))
		if err != nil {
			return fmt.Errorf("open loop device %d: %w", n, err)
		}
		config := unix.LoopConfig{Fd: uint32(f.Fd())}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], file)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		closed := device.Close()
		if errors.Is(err, unix.EBUSY) {
			continue // somebody else took it meanwhile
		}
		if err == nil {
			err = closed
		}
		return err
	}
}

// node opens a device by its node, which it makes if it is not there.
func node(path string, kind uint32, number uint64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := unix.Mknod(path, kind|0o600, int(number)); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make the node %s: %w", path, err)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// unloop frees a loop device. One that is free is no error.
func unloop(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
	if errors.Is(err, unix.ENXIO) {
		err = nil
	}
	return errors.Join(err, f.Close())
}
