package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/test/tier"
)

func diskRequest(token string) cloud.DiskRequest {
	return cloud.DiskRequest{Token: token, SizeBytes: 64 << 20, Zone: testTypes[0].Offerings[0].Zone,
		Tags: map[string]string{cloud.TagOwner: "me"}}
}

func newDisk(t *testing.T, c *Cloud, token string) string {
	t.Helper()
	d, err := c.CreateDisk(t.Context(), diskRequest(token))
	if err != nil {
		t.Fatal(err)
	}
	return d.ID
}

func holderOf(t *testing.T, c *Cloud, id string) string {
	t.Helper()
	list, err := c.ListDisks(t.Context(), "me")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.ID == id {
			return d.Instance
		}
	}
	t.Fatalf("disk %s is not listed: %+v", id, list)
	return ""
}

func TestDiskIsADeviceOfOneMachineAndKeepsItsData(t *testing.T) {
	limited(t)
	cfg := testHost(t)
	c := open(t, cfg)
	a, b := launch(t, c, request("a")), launch(t, c, request("b"))
	id := newDisk(t, c, "disk")
	device := deviceDir + "/" + deviceName(id)
	if err := c.AttachDisk(t.Context(), id, a.ID); err != nil {
		t.Fatal(err)
	}
	if got := run(t, a.ManagementIP, "stat -c %F "+device); got != "block special file" {
		t.Fatalf("the device in the machine is a %q", got)
	}
	if out, err := exec.Command(c.kind.mkfs, "-q", "-F", cfg.Disk(id).File).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run(t, a.ManagementIP, "mkdir -p /mnt/v && mount -t ext4 "+device+" /mnt/v && echo kept > /mnt/v/f")

	// It is mounted, so it stays, also in the records.
	if err := c.DetachDisk(t.Context(), id, a.ID); !errors.Is(err, cloud.ErrInUse) {
		t.Errorf("detached while it is mounted: %v: want ErrInUse", err)
	}
	if has := holderOf(t, c, id); has != a.ID {
		t.Errorf("%q has the disk: want %s", has, a.ID)
	}
	// A file system that was not unmounted, since its machine was killed.
	if err := c.Terminate(t.Context(), a.ID).Err(); err != nil {
		t.Fatal(err)
	}
	if has := holderOf(t, c, id); has != "" {
		t.Errorf("%s, which is gone, has the disk", has)
	}
	if err := c.AttachDisk(t.Context(), id, b.ID); err != nil {
		t.Fatal(err)
	}
	if got := run(t, b.ManagementIP,
		"mkdir -p /mnt/v && mount -t ext4 "+device+" /mnt/v && cat /mnt/v/f && busybox umount /mnt/v"); got != "kept" {
		t.Errorf("read %q on the other machine", got)
	}
	if err := c.DetachDisk(t.Context(), id, b.ID); err != nil {
		t.Fatal(err)
	}
	if got := run(t, b.ManagementIP, "ls "+deviceDir+" | busybox wc -l"); got != "0" {
		t.Errorf("%s devices are left in the machine", got)
	}
	if loops, err := loopsOfDisk(cfg.Disk(id)); err != nil || len(loops) != 0 {
		t.Errorf("loop devices of a detached disk: %v, %v", loops, err)
	}
}

// A model of another cloud has told the ID of a disk before it stands behind it.
func TestADiskHasTheIDThatAnotherCloudHasTold(t *testing.T) {
	limited(t)
	c := open(t, testHost(t))
	const id = "vol-0123456789abcdef0"
	for range 2 { // the second is told of the first
		if d, err := c.CreateDiskAs(t.Context(), id, diskRequest("told")); err != nil || d.ID != id {
			t.Fatalf("made %+v, %v", d, err)
		}
	}
	for _, bad := range []string{"", "vol-1", "../vol-0123456789abcdef0", "vol-0123456789abcdef012", "VOL-0123456789abcdef0"} {
		if d, err := c.CreateDiskAs(t.Context(), bad, diskRequest(bad+"bad")); !errors.Is(err, cloud.ErrRefused) {
			t.Errorf("an ID that is none, %q: %+v, %v", bad, d, err)
		}
	}
	m := launch(t, c, request("m"))
	if err := c.AttachDisk(t.Context(), id, m.ID); err != nil || holderOf(t, c, id) != m.ID {
		t.Fatal(err)
	}
	if got := run(t, m.ManagementIP, "stat -c %F "+deviceDir+"/"+deviceName(id)); got != "block special file" {
		t.Errorf("the device in the machine is a %q", got)
	}
	if err := c.DetachDisk(t.Context(), id, m.ID); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteDisk(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if list, err := c.ListDisks(t.Context(), "me"); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
}

// A kubelet holds the device of a block volume open by a loop device of it, which
// outlives a machine that is killed.
func TestALoopDeviceOfADisksDeviceIsFreedWithIt(t *testing.T) {
	limited(t)
	cfg := testHost(t)
	c := open(t, cfg)
	a := launch(t, c, request("a"))
	id := newDisk(t, c, "disk")
	if err := c.AttachDisk(t.Context(), id, a.ID); err != nil {
		t.Fatal(err)
	}
	n, err := loop(cfg.Disk(id))
	if err != nil {
		t.Fatal(err)
	}
	_, device, err := host.OpenLoop(n, t.TempDir(), os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	free, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		t.Fatal(err)
	}
	_, holder, err := host.OpenLoop(free, t.TempDir(), os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.IoctlLoopConfigure(int(holder.Fd()), &unix.LoopConfig{Fd: uint32(device.Fd())}), holder.Close(),
		device.Close()); err != nil {
		t.Fatal(err)
	}
	loops, err := loopsOfDisk(cfg.Disk(id))
	if want := []diskLoop{{free, true}, {n, false}}; err != nil || !slices.Equal(loops, want) {
		t.Errorf("the loop devices of the disk are %+v (%v): want %+v", loops, err, want)
	}
	if err := c.DetachDisk(t.Context(), id, a.ID); err != nil {
		t.Error(err)
	}
	if left, err := loopsOfDisk(cfg.Disk(id)); err != nil || len(left) != 0 {
		t.Errorf("left: %+v (%v)", left, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", free)); !os.IsNotExist(err) {
		t.Errorf("loop device %d is in use (%v)", free, err)
	}
}

// A machine that has made a link of the folder of its disks must not have the
// host's files changed.
func TestMachineCannotLeadItsDevicesOutside(t *testing.T) {
	limited(t)
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	outside := t.TempDir()
	run(t, i.ManagementIP, "busybox rmdir /dev/disk/by-id && busybox ln -s "+outside+" /dev/disk/by-id")
	id := newDisk(t, c, "disk")
	if err := c.AttachDisk(t.Context(), id, i.ID); err == nil {
		t.Error("attached to a folder that leads outside")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("outside of the machine: %v, %v", left, err)
	}
}

// grownBytes is how large the disk of diskRequest becomes.
const grownBytes = 96 << 20

// diskLife is all that is done with a disk of a machine.
func diskLife(ctx context.Context, c *Cloud, machine string) error {
	d, err := c.CreateDisk(ctx, diskRequest("disk"))
	if err != nil {
		return err
	}
	if err := c.AttachDisk(ctx, d.ID, machine); err != nil {
		return err
	}
	if _, err := c.GrowDisk(ctx, d.ID, grownBytes); err != nil {
		return err
	}
	if err := c.DetachDisk(ctx, d.ID, machine); err != nil {
		return err
	}
	return c.DeleteDisk(ctx, d.ID)
}

// Wherever Kip dies, the same calls by the next one do what was asked for, and
// nothing is left of what was not.
func TestDisksSurviveAKillAtEveryStep(t *testing.T) {
	tier.All(t)
	limited(t)
	for _, step := range []string{"disk file", "disk recorded", "disk attaching", "disk looped", "disk attached", "disk unlooped",
		"disk detached", "disk record removed"} {
		t.Run(step, func(t *testing.T) {
			cfg := testHost(t)
			die(t, step, "disk")
			c := open(t, cfg)
			i := launch(t, c, request("crash"))
			if got := list(t, c); !slices.Equal(got, []string{i.ID}) {
				t.Fatalf("machines: %q, want %s, which outlived the Kip that died", got, i.ID)
			}
			if err := diskLife(t.Context(), c, i.ID); err != nil {
				t.Fatal(err)
			}
			if err := c.Terminate(t.Context(), i.ID).Err(); err != nil {
				t.Fatal(err)
			}
			// A disk of which the killed one could not tell is no data yet.
			left, err := os.ReadDir(filepath.Join(cfg.StateDir, "disks"))
			if err != nil || len(left) != 0 {
				t.Errorf("left of all disks: %v, %v", left, err)
			}
		})
	}
}

func TestDisksOfAMachineThatVanishedAreFreedAtTheNextStart(t *testing.T) {
	limited(t)
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	id := newDisk(t, c, "disk")
	if err := c.AttachDisk(t.Context(), id, i.ID); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Meanwhile its folder and all that runs of it go, as in a crash of the host.
	side, err := host.Inspect(cfg.Config, i.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(side.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := c.kind.Clear(ctx, i.ID); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(cfg.MachineDir(i.ID)); err != nil {
		t.Fatal(err)
	}
	c = open(t, cfg)
	if has := holderOf(t, c, id); has != "" {
		t.Errorf("%s, which is gone, has the disk", has)
	}
}

// hasGrown checks that a disk has its new size in its record, in its file and as a device.
func hasGrown(t *testing.T, cfg Config, c *Cloud, id string) {
	t.Helper()
	disks, err := c.ListDisks(t.Context(), "me")
	if err != nil || len(disks) != 1 || disks[0].ID != id || disks[0].SizeBytes != grownBytes {
		t.Errorf("listed: %+v, %v; want %s of %d bytes", disks, err, id, grownBytes)
	}
	if file, err := os.Stat(cfg.Disk(id).File); err != nil || file.Size() != grownBytes {
		t.Errorf("its file: %+v, %v; want %d bytes", file, err, grownBytes)
	}
	n, err := loop(cfg.Disk(id))
	if err != nil {
		t.Fatal(err)
	}
	size, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/size", n))
	if got := strings.TrimSpace(string(size)); err != nil || got != fmt.Sprint(grownBytes/512) {
		t.Errorf("the device has %s sectors of 512 bytes (%v): want %d", got, err, grownBytes/512)
	}
}

// Until it is recorded, a disk is as it was to whoever asks.
func TestKipThatDiesWhileADiskGrowsGrowsItAgain(t *testing.T) {
	tier.All(t)
	limited(t)
	for _, step := range []string{"disk file grown", "disk growth shown", "disk grown"} {
		t.Run(step, func(t *testing.T) {
			cfg := testHost(t)
			die(t, step, "disk")
			c := open(t, cfg)
			i := only(t, c)
			want := diskRequest("disk").SizeBytes
			if step == "disk grown" {
				want = grownBytes
			}
			disks, err := c.ListDisks(t.Context(), "me")
			if err != nil || len(disks) != 1 || disks[0].SizeBytes != want || disks[0].Instance != i.ID {
				t.Fatalf("left: %+v, %v; want one of %d bytes, at %s", disks, err, want, i.ID)
			}
			if grown, err := c.GrowDisk(t.Context(), disks[0].ID, grownBytes); err != nil || grown.SizeBytes != grownBytes {
				t.Errorf("grown: %+v, %v; want %d bytes", grown, err, grownBytes)
			}
			hasGrown(t, cfg, c, disks[0].ID)
			if err := diskLife(t.Context(), c, i.ID); err != nil { // the rest of it
				t.Error(err)
			}
			if err := c.Terminate(t.Context(), i.ID).Err(); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(filepath.Join(cfg.StateDir, "disks")); err != nil || len(left) != 0 {
				t.Errorf("left of all disks: %v, %v", left, err)
			}
			onlyBridgeIsLeft(t, cfg)
		})
	}
}

func TestADiskGrowsInTheMachineThatHasIt(t *testing.T) {
	limited(t)
	cfg := testHost(t)
	c := open(t, cfg)
	m := launch(t, c, request("a"))
	id := newDisk(t, c, "disk")
	if err := c.AttachDisk(t.Context(), id, m.ID); err != nil {
		t.Fatal(err)
	}
	grown, err := c.GrowDisk(t.Context(), id, grownBytes)
	if err != nil || grown.SizeBytes != grownBytes || grown.Instance != m.ID {
		t.Errorf("grown: %+v, %v", grown, err)
	}
	hasGrown(t, cfg, c, id)
	if err := c.DetachDisk(t.Context(), id, m.ID); err != nil {
		t.Error(err)
	}
}
