package earlyboot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/gpt"
	"github.com/elotl/kip/internal/agent/modules"
	"github.com/elotl/kip/internal/agent/readahead"
)

const (
	// rootArgument is how the kernel's arguments name the root.
	rootArgument = "kip.root="
	// diskLimit bounds the wait for the disk with the root, and diskPoll is how often it
	// is looked for. A cloud's disk is there when the kernel is.
	diskLimit = 30 * time.Second
	diskPoll  = 10 * time.Millisecond
	// readLimit is how long the console has before the machine is switched off.
	readLimit = 2 * time.Second
)

// Folders of the first file system.
const (
	lower = "/root"
	state = "/state"
	newer = "/new"
)

const (
	// initPath is the root's init, and mostAhead how many bytes of it are read ahead.
	initPath  = "/usr/bin/itzo"
	mostAhead = 32 << 20
)

// onState are the folders of the machine that lie straight on the state partition:
// overlays cannot be stacked on the overlay that the root is.
var onState = []string{"/var/lib/containerd", "/var/lib/kubelet"}

// Main is the machine's first process. It does not return: the process becomes the
// root's init or, where that cannot be, says why and switches the machine off, since
// one that hangs would cost as much as one that works.
func Main() {
	began := console.SinceBoot()
	c := console.New(console.Output())
	c.Say("the kernel has started, init begins")
	err := boot(c, began)
	c.Say("this machine cannot boot, and is switched off: %v", err)
	time.Sleep(readLimit)
	c.Say("switch off: %v", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	select {}
}

func boot(c *console.Console, began time.Duration) error {
	var set *modules.Set
	var root string
	err := c.Step("mount the kernel's file systems", func() (err error) {
		for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
			if err := unix.Mount(m[0], m[1], m[0], unix.MS_NOSUID, ""); err != nil && !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("mount %s: %w", m[1], err)
			}
		}
		if root, err = wanted("/proc/cmdline"); err != nil {
			return err
		}
		dir, err := modules.Dir()
		if err != nil {
			return err
		}
		set, err = modules.Open(dir)
		return err
	})
	if err != nil {
		return err
	}
	var d *disk
	err = c.Step("find the disk with the root "+root, func() (err error) { d, err = wait(c, set, root); return err })
	if err != nil {
		return err
	}
	if err := c.Step("partition "+d.path, d.partitions); err != nil {
		return err
	}
	if err := c.Step("mount the root", func() error { return mountRoot(set, d) }); err != nil {
		return err
	}
	// itzo is read beside what follows. Who still reads when it begins ends with this process.
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		if err := readahead.Files(ctx, mostAhead, lower+initPath); err != nil {
			c.Say("%v", err)
		}
	}()
	if err := c.Step("mount the state "+d.partition(d.state), func() error { return mountState(c, d) }); err != nil {
		return err
	}
	if err := c.Step("see that no other disk has that root", func() error { return alone("/sys", "/dev", d, root) }); err != nil {
		return err
	}
	if err := c.Step("lay them over each other", layOver); err != nil {
		return err
	}
	stop()
	return handOver(began)
}

// alone looks once more before what is on the disk runs: another with that root, or the machine's own, may
// have come later.
func alone(sys, dev string, taken *disk, root string) error {
	all, err := disks(sys)
	if err != nil {
		return err
	}
	d, err := find(dev, all, root)
	if err != nil {
		return err
	}
	if d.path != taken.path {
		return fmt.Errorf("%s, and %s a moment ago: %w", d.path, taken.path, errTwoRoots)
	}
	return nil
}

// wanted returns the ID of the root that the kernel's arguments name.
func wanted(cmdline string) (string, error) {
	b, err := os.ReadFile(cmdline)
	if err != nil {
		return "", err
	}
	for arg := range strings.FieldsSeq(string(b)) {
		if id, ok := strings.CutPrefix(arg, rootArgument); ok && id != "" {
			return id, nil
		}
	}
	return "", fmt.Errorf("the kernel's arguments have no %s", rootArgument)
}

// wait loads the drivers of what the machine has until the disk is there.
func wait(c *console.Console, set *modules.Set, root string) (*disk, error) {
	told := map[string]bool{}
	for deadline := time.Now().Add(diskLimit); ; time.Sleep(diskPoll) {
		if err := set.LoadPresent("/sys/devices"); err != nil && !told[err.Error()] {
			told[err.Error()] = true
			c.Say("a driver failed: %v", err)
		}
		all, err := disks("/sys")
		if err != nil {
			return nil, err
		}
		d, err := find("/dev", all, root)
		if err == nil {
			return d, nil
		}
		if errors.Is(err, errTwoRoots) {
			return nil, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("not there after %v: %w", diskLimit, err)
		}
	}
}

// partitions makes the state's partition, or grows it, and tells the kernel.
func (d *disk) partitions() error {
	changed, err := d.claim()
	if err != nil || !changed {
		return err
	}
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0); err != nil {
		return fmt.Errorf("let the kernel read the partitions of %s: %w", d.path, err)
	}
	return nil
}

func mountRoot(set *modules.Set, d *disk) error {
	for _, m := range []string{"erofs", "overlay"} {
		if err := set.Load(m); err != nil {
			return err
		}
	}
	if err := unix.Mount(d.partition(d.root), lower, "erofs", unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount %s, whose content is not an image's root: %w", d.partition(d.root), err)
	}
	return nil
}

// mountState mounts the state's partition, with a file system as large as that.
func mountState(c *console.Console, d *disk) error {
	device := d.partition(d.state)
	has, err := hasExt4(device)
	if err != nil {
		return err
	}
	if !has {
		if err := c.Step("make its file system", func() error { return format(device) }); err != nil {
			return err
		}
	}
	if err := unix.Mount(device, state, "ext4", unix.MS_NOATIME|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	if !has {
		return nil
	}
	return grow(d.table.Partitions[d.state-1].Sectors() * gpt.Sector / stateBlocks)
}

// format makes a file system with the root's own programs. Tables that it need not
// write now the kernel writes when it has time.
func format(device string) error {
	if err := unix.Mount("/dev", lower+"/dev", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: "/usr/sbin/mke2fs",
		Args: []string{"mke2fs", "-t", "ext4", "-q", "-F", "-b", fmt.Sprint(stateBlocks), "-m", "0", "-L", stateName,
			"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", device},
		Env:         []string{"PATH=/usr/sbin:/usr/bin"},
		SysProcAttr: &unix.SysProcAttr{Chroot: lower},
		Dir:         "/",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("mke2fs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return errors.Join(err, unix.Unmount(lower+"/dev", 0))
}

// grow makes the mounted file system have this many blocks, if it has fewer.
func grow(blocks uint64) error {
	f, err := os.Open(state)
	if err != nil {
		return err
	}
	defer f.Close()
	var now unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &now); err != nil {
		return err
	}
	// What statfs counts leaves the file system's own tables out, a few percent: to ask for
	// the size that it has already changes nothing.
	if blocks <= now.Blocks {
		return nil
	}
	const resize = 0x40086610 // EXT4_IOC_RESIZE_FS: _IOW('f', 16, __u64)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), resize, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return fmt.Errorf("grow the state to %d blocks: %w", blocks, errno)
	}
	return nil
}

// layOver makes the machine's root at newer.
func layOver() error {
	for _, dir := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			return err
		}
	}
	err := unix.Mount("overlay", newer, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, state, state))
	if err != nil {
		return fmt.Errorf("mount the overlay: %w", err)
	}
	if err := mustBeWritable(newer); err != nil {
		return err
	}
	for _, dir := range onState {
		source := filepath.Join(state, filepath.Base(dir))
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, newer+dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := unix.Mount(dir, newer+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	return nil
}

// mustBeWritable is an error where an overlay can only be read, as the kernel mounts it when it can
// make no folder of its own in the state.
func mustBeWritable(overlay string) error {
	var over, under unix.Statfs_t
	if err := errors.Join(unix.Statfs(overlay, &over), unix.Statfs(state, &under)); err != nil {
		return err
	}
	if over.Flags&unix.ST_RDONLY == 0 {
		return nil
	}
	return fmt.Errorf("nothing can be written to the state, which has %d bytes free of %d: a larger disk gives it room",
		under.Bavail*uint64(under.Bsize), under.Blocks*uint64(under.Bsize))
}

// handOver frees the memory of the first file system, makes newer the root and becomes
// its init, which is told when this one began.
func handOver(began time.Duration) error {
	for _, p := range []string{"/init", "/lib"} {
		if err := os.RemoveAll(p); err != nil {
			return fmt.Errorf("free the first file system: %w", err)
		}
	}
	if err := unix.Chdir(newer); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("make the overlay the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	env := []string{"PATH=/usr/sbin:/usr/bin", console.InitBegan + "=" + began.String()}
	if err := unix.Exec(initPath, []string{"itzo", "boot"}, env); err != nil {
		return fmt.Errorf("start the root's init %s: %w", initPath, err)
	}
	return nil
}
