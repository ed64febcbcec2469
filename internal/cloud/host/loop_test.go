package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A machine opens its disk by a mount that it then leaves, and Kip's container ends with all of its mounts. The kernel then tells no path
// of the file that anybody else knows.
func TestALoopDeviceIsKnownWithoutThePathOfItsFile(t *testing.T) {
	if err := MustBeRoot(); err != nil {
		t.Skip(err)
	}
	state, seen := t.TempDir(), t.TempDir()
	disk, other := filepath.Join("machines", "i-1", DiskImage), filepath.Join("machines", "i-2", DiskImage)
	for _, name := range []string{disk, other} {
		path := filepath.Join(state, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 1<<20), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(state, seen, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(seen, disk), os.O_RDWR, 0)
	if err := errors.Join(err, unix.Unmount(seen, unix.MNT_DETACH)); err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	device := attach(t, file)

	loops, err := LoopsOf(state)
	if want := []string{filepath.Base(device)}; err != nil || !slices.Equal(loops, want) {
		t.Errorf("the loop devices of the cloud are %v (%v): want %v", loops, err, want)
	}
	for name, want := range map[string]int{disk: 1, other: 0} {
		loops, err := LoopsOf(filepath.Dir(filepath.Join(state, name)))
		if err != nil || len(loops) != want {
			t.Errorf("the loop devices of %s are %v (%v): want %d", name, loops, err, want)
		}
	}
}

// attach gives a free loop device a file until the test ends.
func attach(t *testing.T, file *os.File) (device string) {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("this host has no loop devices: %v", err)
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		_, loop, err := OpenLoop(n, t.TempDir(), os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd())})
		if errors.Is(err, unix.EBUSY) {
			loop.Close()
			continue // somebody else took it meanwhile
		}
		t.Cleanup(func() {
			if err := errors.Join(unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0), loop.Close()); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("/dev/loop%d", n)
	}
}
