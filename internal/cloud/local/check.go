package local

import (
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud/host"
)

// checkHost refuses hosts on which no machine can be made, with the reason.
func checkHost() error {
	if err := host.MustBeRoot(); err != nil {
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
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make stateDir: %w", err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("stateDir %s: %w", dir, err)
	}
	if s.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return fmt.Errorf("stateDir %s lies on an overlay file system, as in a container's root: mount a volume there", dir)
	}
	return nil
}

// raiseLimits lifts the one host-wide limit that a few machines exhaust: each
// kubelet and containerd hold about eight inotify instances, all as root.
func raiseLimits(log *slog.Logger) {
	const path, want = "/proc/sys/fs/inotify/max_user_instances", 8192
	b, err := os.ReadFile(path)
	if err != nil {
		log.Warn("cannot read a host limit", "path", path, "err", err)
		return
	}
	var have int
	if _, err := fmt.Sscan(string(b), &have); err != nil || have >= want {
		return
	}
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d\n", want), 0); err != nil {
		log.Warn("only about ten machines can run: the host's limit of inotify instances is low and cannot be raised",
			"have", have, "mend", fmt.Sprintf("sysctl -w fs.inotify.max_user_instances=%d", want), "err", err)
		return
	}
	log.Info("raised a host limit", "sysctl", "fs.inotify.max_user_instances", "from", have, "to", want)
}
