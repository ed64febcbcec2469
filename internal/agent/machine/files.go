package machine

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/dhcp"
)

// mounts are the kernel's file systems, in their order; /proc, /sys and /dev are there.
var mounts = []struct {
	kind, path string
	flags      uintptr
	options    string
}{
	{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "ptmxmode=0666,mode=0620,gid=5"},
	{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"mqueue", "/dev/mqueue", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"cgroup2", "/sys/fs/cgroup", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "nsdelegate,memory_recursiveprot"},
	{"bpf", "/sys/fs/bpf", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "mode=0700"},
	{"securityfs", "/sys/kernel/security", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
}

// deviceLinks are names in /dev that the kernel does not make.
var deviceLinks = map[string]string{
	"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2",
}

func mount() error {
	info, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	there, err := mounted(info)
	if err := errors.Join(err, info.Close()); err != nil {
		return fmt.Errorf("look for what is mounted: %w", err)
	}
	for _, m := range mounts {
		if there[m.path] == m.kind {
			continue // another agent has taken over
		}
		if err := os.MkdirAll(m.path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.path, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.path, err)
		}
	}
	for p, to := range deviceLinks {
		if err := os.Symlink(to, p); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// As with any init: volumes with mount propagation need it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// mounted are the kinds of the file systems that are mounted, by where.
func mounted(mountinfo io.Reader) (map[string]string, error) {
	there := map[string]string{}
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		// 36 35 98:0 /root /mount/point options [optional…] - type source options
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 {
			return nil, fmt.Errorf("a line is not as the kernel writes it: %.100q", lines.Text())
		}
		there[fields[4]], _, _ = strings.Cut(after, " ")
	}
	return there, lines.Err()
}

// Setting is one of the kernel, and why a cell has it.
type Setting struct {
	// Key is its file below /proc/sys.
	Key   string `json:"key"`
	Value string `json:"value"`
	Why   string `json:"why"`
}

// Settings are all that a machine's kernel is given.
func Settings() []Setting {
	return append(slices.Clone(settings), Setting{
		Key:   minFree,
		Value: fmt.Sprintf("what the kernel takes, and a %dth of the memory at most", freeShare),
		Why:   "a kernel with huge pages would keep much of a small machine free",
	})
}

// settings differ from the kernel's own, or say what a cell relies on. What else the kubelet wants
// it sets itself, such as 10 seconds between a panic and the start after it, in place of the
// image's one.
var settings = []Setting{
	{"vm/panic_on_oom", "0", "memory that runs out ends a process of the pod, and not the machine"},
	{"kernel/panic_on_oops", "1", "a kernel that lost its way ends, so that the cloud sees it"},
	{"kernel/sysrq", "0", "nobody is at the keyboard"},
	{"kernel/dmesg_restrict", "1", "the kernel's log tells pods where it lies in memory"},
	{"kernel/kptr_restrict", "2", "so do addresses in /proc"},
	{"kernel/unprivileged_bpf_disabled", "1", "programs in the kernel are for who may have them"},
	{"kernel/kexec_load_disabled", "1", "another kernel would be a second life"},
	{"fs/protected_symlinks", "1", "links in folders that all may write are not followed to others' files"},
	{"fs/protected_hardlinks", "1", "the same for hard links"},
	{"fs/protected_fifos", "1", "the same for pipes"},
	{"fs/protected_regular", "2", "the same for files"},
	{"fs/inotify/max_user_instances", "8192", "a pod has as many processes as it likes, all of one user"},
	{"fs/inotify/max_user_watches", "524288", "and they watch trees of sources"},
	{"vm/max_map_count", "524288", "databases map many files; nodes of EKS have as many"},
	{"fs/file-max", "9223372036854775807", "the pod's memory bounds its open files; systemd sets this on other nodes"},
	{"kernel/pid_max", "4194304", "the kernel has 32768 for up to 32 processors; systemd sets this on other nodes"},
	{"net/ipv4/neigh/default/gc_thresh1", "0", "neighbours that are not used are forgotten, as on Amazon Linux"},
	{"net/ipv4/neigh/default/gc_thresh2", "15360", "a pod may talk to every address of a large subnet"},
	{"net/ipv4/neigh/default/gc_thresh3", "16384", "beyond it packets are dropped; the kernel's is 1024"},
	{"net/ipv6/neigh/default/gc_thresh1", "0", "the same for IPv6"},
	{"net/ipv6/neigh/default/gc_thresh2", "15360", "the same for IPv6"},
	{"net/ipv6/neigh/default/gc_thresh3", "16384", "the same for IPv6"},
	{"net/ipv6/conf/all/accept_ra", "2", "a cell forwards for its pod, and still learns its routes"},
	{"net/ipv6/conf/default/accept_ra", "2", "the same for devices to come"},
}

// freeShare is the part of a machine's memory that its kernel keeps free at most: one byte of so
// many. For huge pages a kernel keeps 44 to 66 MiB, however small the machine, and starts to look
// for memory when twice as much is left. This is still twice what it keeps of 1 GiB without them.
const freeShare = 128

// minFree is how much memory the kernel keeps free, in KiB.
const minFree = "vm/min_free_kbytes"

// systemScore is the oom_score_adj of itzo and all that it starts: the kubelet's of itself. The
// first process is never ended for memory; what inherits this goes after every container of the
// pod, for which the kubelet sets -997 to 1000 by its class.
const systemScore = "-999"

// beLast has the kernel end this process, and those that it starts, last when memory runs out.
func beLast(proc string) error {
	return os.WriteFile(filepath.Join(proc, "self/oom_score_adj"), []byte(systemScore), 0o644)
}

// leaveToPods has the kernel keep less memory free on a small machine, below dir, of total bytes.
func leaveToPods(dir string, total int64) error {
	file := filepath.Join(dir, minFree)
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	kept, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	most := total / freeShare / 1024
	if kept <= most {
		return nil
	}
	return os.WriteFile(file, strconv.AppendInt(nil, most, 10), 0o644)
}

// memory is the machine's, in bytes, as its kernel counts it.
func memory() (int64, error) {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0, fmt.Errorf("ask for the machine's memory: %w", err)
	}
	return int64(i.Totalram) * int64(i.Unit), nil
}

// settle writes all settings below proc, each that it can.
func settle(proc string) error {
	dir := filepath.Join(proc, "sys")
	total, err := memory()
	if err == nil {
		err = leaveToPods(dir, total)
	}
	return errors.Join(set(dir, settings), err, beLast(proc))
}

// set writes settings below dir, each that it can.
func set(dir string, settings []Setting) error {
	var errs []error
	for _, s := range settings {
		f, err := os.OpenFile(filepath.Join(dir, s.Key), os.O_WRONLY, 0)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		_, err = f.WriteString(s.Value)
		errs = append(errs, err, f.Close())
	}
	return errors.Join(errs...)
}

// resolvConf names those who answer for names.
func resolvConf(l dhcp.Lease) string {
	var b strings.Builder
	for _, a := range l.DNS {
		fmt.Fprintf(&b, "nameserver %s\n", a)
	}
	if b.Len() == 0 {
		b.WriteString("# No nameserver: a look-up fails at once.\n")
	}
	if len(l.Search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(l.Search, " "))
	}
	return b.String()
}

// machineID is made of the firmware's ID of this machine: the same at each of its boots.
func machineID(root string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "sys/class/dmi/id/product_uuid"))
	if errors.Is(err, os.ErrNotExist) {
		b, err = os.ReadFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"))
	}
	if err != nil {
		return "", fmt.Errorf("make the machine's ID: %w", err)
	}
	sum := sha256.Sum256(append([]byte("kip machine-id "), b...))
	return hex.EncodeToString(sum[:16]), nil
}
