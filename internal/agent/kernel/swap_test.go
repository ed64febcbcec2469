package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const swapFile = "var/lib/kubelet/kip-swap"

// swapWorld is a machine without swap. What its kernel is asked to swap to is in on.
func swapWorld(t *testing.T, on *[]string) (*world, *Kernel) {
	w := newWorld(t)
	for name, text := range map[string]string{
		"proc/self/cgroup":                     "0::/system\n",
		"proc/swaps":                           "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
		"sys/fs/cgroup/cgroup.subtree_control": "",
		"sys/fs/cgroup/system/memory.swap.max": "max\n",
	} {
		w.file(name, text)
	}
	k := w.kernel(false)
	k.o.CgroupV2, k.o.SwapFile = true, "/"+swapFile
	k.swapOn = func(path string) error {
		*on = append(*on, path)
		return nil
	}
	return w, k
}

func (w *world) read(name string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.root, name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

func TestTheKernelSwapsToAFileOfTheSizeThatItIsAskedFor(t *testing.T) {
	var on []string
	w, k := swapWorld(t, &on)
	path := filepath.Join(w.root, swapFile)
	w.file(swapFile, "of before the machine was started anew")
	for range 2 {
		if err := k.Swap(3 * mi); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Size() != 3*mi || info.Mode().Perm() != 0o600 || info.Sys() == nil || len(on) != 1 || on[0] != path {
			t.Fatalf("the file is %v, %v; the kernel swaps to %q", info, err, on)
		}
		if used, err := usedBytes(path); err != nil || used < 3*mi {
			t.Errorf("it has %d bytes of the disk, %v", used, err)
		}
		page := os.Getpagesize()
		b := w.read(swapFile)
		last := binary.NativeEndian.Uint32([]byte(b[1028:]))
		if b[page-10:page] != "SWAPSPACE2" || binary.NativeEndian.Uint32([]byte(b[1024:])) != 1 || int(last) != 3*mi/page-1 {
			t.Errorf("its header has the signature %q and the last page %d", b[page-10:page], last)
		}
		if b[1032:page-10] != strings.Repeat("\x00", page-10-1032) {
			t.Error("its header has more in it")
		}
		// The agent stays in memory.
		if got, all := w.read("sys/fs/cgroup/system/memory.swap.max"), w.read("sys/fs/cgroup/cgroup.subtree_control"); got != "0\n" ||
			all != "+memory\n" {
			t.Errorf("the agent may have %q of it, by the controllers %q", got, all)
		}
		// Then another agent takes over, and the kernel swaps already.
		w.file("proc/swaps", fmt.Sprintf("Filename Type Size Used Priority\n/%s file %d 128 -2\n", swapFile, (3*mi-page)>>10))
	}
}

func usedBytes(path string) (int64, error) {
	var s unix.Stat_t
	err := unix.Stat(path, &s)
	return s.Blocks * 512, err
}

func TestAMachineThatCanHaveNoSwapSaysWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(w *world, k *Kernel)
		bytes  int64
		want   string
	}{
		"it shares its kernel": {func(_ *world, k *Kernel) { k.o.Shared = true }, 2 * mi,
			"make swap of 2 MiB: this machine shares its kernel with others"},
		"cgroup v1": {func(_ *world, k *Kernel) { k.o.CgroupV2 = false }, 2 * mi,
			"make swap of 2 MiB: this machine has cgroup v1, and a kubelet limits swap by cgroup v2 alone"},
		"no controller": {func(w *world, _ *Kernel) {
			_ = os.Remove(filepath.Join(w.root, "sys/fs/cgroup/system/memory.swap.max"))
		}, 2 * mi,
			"make swap of 2 MiB: the kernel does not limit swap by cgroup: open "},
		"the agent is in no cgroup of v2": {func(w *world, _ *Kernel) { w.file("proc/self/cgroup", "3:memory:/system\n0::/\n") }, 2 * mi,
			"the agent's cgroup is "},
		"a kernel without swap": {func(w *world, _ *Kernel) { _ = os.Remove(filepath.Join(w.root, "proc/swaps")) }, 2 * mi,
			"make swap of 2 MiB: the kernel knows no swap"},
		"the disk is full": {func(*world, *Kernel) {}, 1 << 50, "make swap of 1073741824 MiB: "},
		"a file system that takes none": {func(_ *world, k *Kernel) { k.swapOn = func(string) error { return unix.EINVAL } }, 2 * mi,
			"make swap of 2 MiB: swap to /var/lib/kubelet/kip-swap: the kernel says: invalid argument"},
	} {
		t.Run(name, func(t *testing.T) {
			var on []string
			w, k := swapWorld(t, &on)
			tc.change(w, k)
			err := k.Swap(tc.bytes)
			if !strings.Contains(fmt.Sprint(err), tc.want) || !errors.Is(err, ErrRefused) || len(on) > 0 {
				t.Errorf("%v, want %q; the kernel swaps to %q", err, tc.want, on)
			}
			if _, err := os.Stat(filepath.Join(w.root, swapFile)); err == nil {
				t.Error("the file is left")
			}
		})
	}
}
