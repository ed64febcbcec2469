package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/host/cgroups"
)

// hidden is where, in a machine, the files are that cover kernel entries. It
// also holds /proc and /sys as the kernel shows them: the kernel lets a user
// namespace mount these only where it can see one that nothing covers.
const hidden = "/dev/.kip"

// diskDirs are the directories of a machine that lie straight on a disk, its own
// or the host's: overlay mounts cannot be stacked on the overlay that the root is.
var diskDirs = []string{"/var/lib/containerd", "/var/lib/kubelet"}

func diskName(dir string) string { return filepath.Base(dir) }

// root builds the machine's root and moves into it.
func (s spec) root() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	b := &build{root: filepath.Join(s.Dir, "root")}
	b.overlay(s.RootDir, filepath.Join(s.Dir, "upper"), filepath.Join(s.Dir, "work"))
	b.mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	b.mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	b.mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755")
	s.devices(b)
	s.hardware(b)
	s.cgroups(b)
	s.disk(b)
	for _, d := range diskDirs {
		b.bind(filepath.Join(s.Dir, "disk", diskName(d)), d)
	}
	b.readOnly("/sys")
	if b.err != nil {
		return b.err
	}
	return s.enter(b.root)
}

// disk makes the directories that diskDirs are shown from: on the machine's own
// disk, if it has one, else on the host's.
func (s spec) disk(b *build) {
	dir := filepath.Join(s.Dir, "disk")
	b.do("mount the disk for", diskDirs[0], func(string) error {
		image := filepath.Join(s.Dir, host.DiskImage)
		if _, err := os.Stat(image); err == nil {
			if err := mountDisk(image, dir); err != nil {
				return err
			}
		}
		for _, d := range diskDirs {
			if err := os.MkdirAll(filepath.Join(dir, diskName(d)), 0o755); err != nil {
				return err
			}
		}
		return nil
	})
}

// enter makes root the root and lets go of the host's.
func (s spec) enter(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("enter %s: %w", root, err)
	}
	// Both arguments the same: the old root ends up on top of the new one,
	// and needs no directory in it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	// As on any machine with an init: volumes with mount propagation need it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// devices fills /dev.
func (s spec) devices(b *build) {
	b.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=0755")
	for _, d := range []struct {
		name         string
		major, minor uint32
		mode         uint32
	}{
		{"null", 1, 3, 0o666}, {"zero", 1, 5, 0o666}, {"full", 1, 7, 0o666},
		{"random", 1, 8, 0o666}, {"urandom", 1, 9, 0o666},
		{"kmsg", 1, 11, 0o600}, // the kubelet watches it for OOM kills
		{"tty", 5, 0, 0o666},
		{"fuse", 10, 229, 0o666}, {"net/tun", 10, 200, 0o666},
	} {
		b.device("/dev/"+d.name, d.mode, unix.Mkdev(d.major, d.minor))
	}
	s.gpus(b)
	b.do("make", deviceDir, func(target string) error { return os.MkdirAll(target, 0o755) })
	b.mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
	b.mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	b.mount("mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	b.link("pts/ptmx", "/dev/ptmx")
	b.link("/proc/self/fd", "/dev/fd")
	b.link("fd/0", "/dev/stdin")
	b.link("fd/1", "/dev/stdout")
	b.link("fd/2", "/dev/stderr")
}

// hardware covers what would show the host's size, or let the host be changed.
func (s spec) hardware(b *build) {
	b.mount("proc", hidden+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	b.mount("sysfs", hidden+"/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	host, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		b.fail(err)
		return
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		b.fail(err)
		return
	}
	b.cover("/proc/cpuinfo", cpuinfo(string(host), s.Cores))
	b.cover("/proc/meminfo", meminfo(s.MemoryBytes))
	b.cover("/proc/swaps", noSwap)
	b.cover("/proc/sysrq-trigger", "")
	b.cover("/proc/sys/kernel/random/boot_id", string(boot))
	for _, e := range kernelEntries {
		b.cover("/proc/sys/"+e.path, e.content)
	}
	drivers, err := os.ReadFile("/proc/devices")
	if err != nil {
		b.fail(err)
		return
	}
	b.cover("/proc/devices", withoutGPUs(string(drivers)))
	b.coverTree("/proc/driver/nvidia", []file{{path: "version", content: noDriver}})
	b.coverTree("/sys/devices/system/cpu", cpuTree(s.Cores))
	b.coverTree("/sys/devices/system/node", nodeTree(s.Cores, s.MemoryBytes))
}

// cgroups shows the machine its own part of each hierarchy as the whole.
func (s spec) cgroups(b *build) {
	const dir = "/sys/fs/cgroup"
	if s.PureV2 {
		b.bind(s.Cgroups[0].Host, dir)
		// Processes may live in leaves only, once children have controllers.
		b.leaf(filepath.Join(b.root, dir))
		return
	}
	b.mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755")
	for _, g := range s.Cgroups {
		b.bind(g.Host, dir+"/"+g.Name)
		for _, l := range g.Links {
			b.link(g.Name, dir+"/"+l)
		}
	}
}

// build makes a root step by step; after a failure it does nothing more.
type build struct {
	root string
	err  error
}

func (b *build) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// do runs one step that is described by what and concerns path in the machine.
func (b *build) do(what, path string, f func(target string) error) {
	if b.err != nil {
		return
	}
	if err := f(filepath.Join(b.root, path)); err != nil {
		b.err = fmt.Errorf("%s %s: %w", what, path, err)
	}
}

func (b *build) overlay(lower, upper, work string) {
	b.do("mount the overlay of "+lower+" and "+upper+" on", "/", func(target string) error {
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
		// Volatile: ending a machine does not flush the host's disk. What it
		// wrote is used again only if it was stopped, and see refill for that.
		err := unix.Mount("overlay", target, "overlay", 0, options+",volatile")
		if errors.Is(err, unix.EINVAL) { // before Linux 5.10
			err = unix.Mount("overlay", target, "overlay", 0, options)
		}
		return host.Missing(err, "overlay")
	})
}

func (b *build) mount(source, path, kind string, flags uintptr, options string) {
	b.do("mount "+kind+" on", path, func(target string) error {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		return unix.Mount(source, target, kind, flags, options)
	})
}

// bind shows the host's directory at path.
func (b *build) bind(source, path string) {
	b.do("bind "+source+" to", path, func(target string) error {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		return unix.Mount(source, target, "", unix.MS_BIND, "")
	})
}

func (b *build) readOnly(path string) {
	b.do("make read-only", path, func(target string) error {
		return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	})
}

func (b *build) device(path string, mode uint32, dev uint64) {
	b.do("make device", path, func(target string) error {
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(target, unix.S_IFCHR|mode, int(dev)); err != nil {
			return err
		}
		return os.Chmod(target, fs.FileMode(mode)) // whatever the umask
	})
}

func (b *build) link(to, path string) {
	b.do("link", path, func(target string) error { return os.Symlink(to, target) })
}

// cover puts a file of the machine's own over an entry of the kernel's. Entries
// that this kernel does not have stay missing.
func (b *build) cover(path, content string) {
	b.do("cover", path, func(target string) error {
		if _, err := os.Lstat(target); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		source := filepath.Join(b.root, hidden, "over", path)
		if err := os.MkdirAll(filepath.Dir(source), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(source, []byte(content), 0o644); err != nil {
			return err
		}
		return unix.Mount(source, target, "", unix.MS_BIND, "")
	})
}

// coverTree does the same with a directory.
func (b *build) coverTree(path string, files []file) {
	b.do("cover", path, func(target string) error {
		if _, err := os.Lstat(target); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		source := filepath.Join(b.root, hidden, "over", path)
		for _, f := range files {
			p := filepath.Join(source, f.path)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				return err
			}
			var err error
			if f.link {
				err = os.Symlink(f.content, p)
			} else {
				err = os.WriteFile(p, []byte(f.content), 0o444)
			}
			if err != nil {
				return err
			}
		}
		return unix.Mount(source, target, "", unix.MS_BIND, "")
	})
}

// leaf moves this process into a child of the v2 cgroup mounted at dir and
// passes the controllers on to children.
func (b *build) leaf(dir string) {
	if b.err != nil {
		return
	}
	init := filepath.Join(dir, "init")
	err := os.Mkdir(init, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(init, "cgroup.procs"), []byte("0"), 0)
	}
	if err == nil {
		err = cgroups.Delegate(dir)
	}
	if err != nil {
		b.err = fmt.Errorf("delegate cgroup controllers to the machine: %w", err)
	}
}
