package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud/host"
)

// A machine's disk, below diskDirs, is an ext4 file system in a sparse file as
// large as its type says, if the host can make one. The machine mounts it in its
// own namespace, from a loop device that the kernel frees with the mount: when
// the machine ends, in whatever way, neither is left.

// mkfsArgs make a file system that is quick to make and to drop. What protects
// data from a crash of the host is left out: no machine outlives that.
var mkfsArgs = []string{"-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode,sparse_super2", "-G", "256", "-E",
	"lazy_itable_init=1,nodiscard,num_backup_sb=0"}

// findMkfs returns the program that makes disks, or why there is none.
func findMkfs() (string, error) {
	path, err := exec.LookPath("mkfs.ext4")
	for _, dir := range []string{"/usr/sbin", "/sbin"} { // not in everybody's PATH
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, "mkfs.ext4"))
		}
	}
	if err != nil {
		return "", fmt.Errorf("%w: install e2fsprogs", err)
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return "", err
	}
	if !bytes.Contains(filesystems, []byte("\text4\n")) {
		return "", errors.New("the kernel has no ext4: modprobe ext4")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "", fmt.Errorf("the kernel has no loop devices: modprobe loop: %w", err)
	}
	return path, nil
}

// makeDisk makes the disk of the machine in dir.
func (k *kind) makeDisk(ctx context.Context, dir string, size int64) error {
	path := filepath.Join(dir, host.DiskImage)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(f.Truncate(size), f.Close())
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, k.mkfs, append(mkfsArgs, path)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", k.mkfs, path, err, bytes.TrimSpace(out))
	}
	return nil
}

// mountDisk mounts a disk at dir. The loop device ends with the mount.
func mountDisk(image, dir string) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("find a free loop device: %w", err)
		}
		node, loop, err := host.OpenLoop(n, filepath.Dir(image), os.O_RDWR)
		if err != nil {
			return fmt.Errorf("open loop device %d: %w", n, err)
		}
		config := unix.LoopConfig{Fd: uint32(f.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], image)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			// Not flushed when it is unmounted: see mkfsArgs.
			err = unix.Mount(node, dir, "ext4", unix.MS_NOATIME, "nobarrier,noinit_itable")
		}
		loop.Close()
		if errors.Is(err, unix.EBUSY) {
			continue // another machine took it meanwhile
		}
		return err
	}
}
