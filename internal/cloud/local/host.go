package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another process has the cloud of this state folder open.
var ErrInUse = errors.New("the state folder is in use by another process")

// lock takes the state folder, making it if it is missing. The lock goes with
// the process that holds it.
func lock(cfg Config) (unlock func(), err error) {
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make stateDir: %w", err)
	}
	path := filepath.Join(cfg.StateDir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock stateDir: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(f)
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s (process %s)", ErrInUse, cfg.StateDir, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// For people, and for the message above.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	return func() { f.Close() }, nil
}

func mustBeRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("machines on this host need root: run as root, e.g. with sudo")
	}
	return nil
}

// checkHost refuses hosts on which no machine can be made, with the reason.
func checkHost() error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	var header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read own capabilities: %w", err)
	}
	for _, c := range []struct {
		name string
		bit  int
	}{{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}, {"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, {"CAP_MKNOD", unix.CAP_MKNOD}} {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			return fmt.Errorf("root lacks %s, as in an unprivileged container: run on the host, or in a privileged container", c.name)
		}
	}
	for _, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"} {
		if _, err := os.Stat("/proc/self/ns/" + ns); err != nil {
			return fmt.Errorf("the kernel has no %s namespaces: use one built with CONFIG_NAMESPACES and all kinds of them: %w", ns, err)
		}
	}
	return nil
}

// refuseOverlay: the kernel puts no writable overlay on another.
func refuseOverlay(dir string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("stateDir %s: %w", dir, err)
	}
	if s.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return fmt.Errorf("stateDir %s lies on an overlay file system, as in a container's root: mount a volume there", dir)
	}
	return nil
}

// missing adds to an error that stands for "this kernel cannot" what mends it.
func missing(err error, module string) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w (the kernel has no %s: modprobe %s, or use a kernel that has it)", err, module, module)
	}
	return err
}
