package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Swap has the kernel swap to a file of so many bytes, whole MiB of them. It returns an ErrRefused where the machine cannot have that.
//
// The agent and what it runs are not swapped out: the cell would fall silent, and Kip take it for lost. A kubelet counts swap when it
// starts.
func (k *Kernel) Swap(bytes int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	what := fmt.Sprintf("make swap of %d MiB", bytes>>20)
	switch {
	case k.o.Shared:
		return refuse("%s: this machine shares its kernel with others", what)
	case !k.o.CgroupV2:
		return refuse("%s: this machine has cgroup v1, and a kubelet limits swap by cgroup v2 alone", what)
	}
	if err := k.exempt(); err != nil {
		return refuse("%s: the kernel does not limit swap by cgroup: %v", what, err)
	}
	is, err := k.swapsTo(bytes)
	if err != nil {
		return refuse("%s: %v", what, err)
	}
	if is {
		return nil
	}
	if err := k.makeSwap(bytes); err != nil {
		_ = os.Remove(k.swapFile()) // nobody swaps to it
		return refuse("%s: %v", what, err)
	}
	return nil
}

// exempt keeps the agent and what it runs in memory, of which its cgroup has none in swap.
func (k *Kernel) exempt() error {
	// As the agent of Kip's image finds its kernel. Elsewhere systemd has done it, or the next write says that nobody has.
	_ = k.setFile(filepath.Join(k.o.Root, "sys/fs/cgroup/cgroup.subtree_control"), "+memory")
	b, err := os.ReadFile(filepath.Join(k.o.Root, "proc/self/cgroup"))
	if err != nil {
		return err
	}
	own, is := strings.CutPrefix(strings.TrimSpace(string(b)), "0::/")
	if !is || strings.Contains(own, "\n") {
		return fmt.Errorf("the agent's cgroup is %.100q", b)
	}
	return k.setFile(filepath.Join(k.o.Root, "sys/fs/cgroup", own, "memory.swap.max"), "0")
}

func (k *Kernel) swapFile() string { return filepath.Join(k.o.Root, k.o.SwapFile) }

// swapsTo reports whether the kernel swaps to a file of so many bytes, of which the first page is none of the swap.
func (k *Kernel) swapsTo(bytes int64) (bool, error) {
	b, err := os.ReadFile(filepath.Join(k.o.Root, "proc/swaps"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, errors.New("the kernel knows no swap")
	}
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		// Filename Type Size Used Priority, with sizes in KiB.
		fields := strings.Fields(line)
		if len(fields) >= 3 && fields[0] == k.o.SwapFile {
			return fields[2] == strconv.FormatInt((bytes-int64(os.Getpagesize()))>>10, 10), nil
		}
	}
	return false, nil
}

// makeSwap makes the file, and has the kernel swap to it.
func (k *Kernel) makeSwap(bytes int64) error {
	path := k.swapFile()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = fillSwap(f, bytes)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := k.swapOn(path); err != nil {
		return fmt.Errorf("swap to %s: the kernel says: %w", k.o.SwapFile, err)
	}
	return nil
}

// fillSwap gives a file its room on the disk, and makes it one to swap to: with the header of union swap_header in Linux'
// include/linux/swap.h, which the first page has, as mkswap writes it. Blocks that were never written may be swapped to (swapon(8),
// "Files with holes").
func fillSwap(f *os.File, bytes int64) error {
	if err := unix.Fallocate(int(f.Fd()), 0, 0, bytes); err != nil {
		var disk unix.Statfs_t
		if errors.Is(err, unix.ENOSPC) && unix.Fstatfs(int(f.Fd()), &disk) == nil {
			return fmt.Errorf("the disk has %d MiB free", int64(disk.Bavail)*disk.Bsize>>20)
		}
		return fmt.Errorf("find room for it on the disk: %w", err)
	}
	const versionAt, version, lastAt, signature = 1024, 1, 1028, "SWAPSPACE2"
	page := make([]byte, os.Getpagesize())
	binary.NativeEndian.PutUint32(page[versionAt:], version)
	binary.NativeEndian.PutUint32(page[lastAt:], uint32(bytes/int64(len(page))-1))
	copy(page[len(page)-len(signature):], signature)
	if _, err := f.WriteAt(page, 0); err != nil {
		return err
	}
	return f.Sync()
}

// swapOn has the kernel swap to a file.
func swapOn(path string) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
