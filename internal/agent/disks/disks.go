package disks

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agentapi"
)

// Set is the disks of one machine.
type Set struct {
	root string // of the machine: "/"
	log  *slog.Logger
	mu   sync.Mutex
}

// New returns the disks of the machine whose root directory is root.
func New(root string, log *slog.Logger) *Set { return &Set{root: root, log: log} }

// ErrNotYet says that the machine does not show a device of the disk. It may come.
var ErrNotYet = errors.New("the machine has no device of it yet")

// ErrInUse says that a file system of the disk is mounted, or its device is open.
var ErrInUse = errors.New("it is in use")

var diskID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// Validate says which of the IDs cannot be one.
func Validate(ids []string) error {
	for i, id := range ids {
		if !diskID.MatchString(id) {
			return fmt.Errorf("disks[%d] is %q: want an ID of letters, digits, '.', '_' and '-', at most 128", i, id)
		}
	}
	return nil
}

// Apply shows exactly these disks. It returns when each has its path, and when
// all others that the machine was shown are unmounted and written: ErrNotYet and
// ErrInUse mean that the call is to be repeated.
func (s *Set) Apply(ids []string) error {
	if err := Validate(ids); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := filepath.Join(s.root, agentapi.DiskDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of disks: %w", err)
	}
	shown, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the disks that are shown: %w", err)
	}
	var errs []error
	for _, e := range shown {
		if slices.Contains(ids, e.Name()) {
			continue
		}
		if err := s.hide(filepath.Join(dir, e.Name())); err != nil {
			errs = append(errs, fmt.Errorf("let go of disk %s: %w", e.Name(), err))
		}
	}
	for _, id := range ids {
		if err := s.show(id, filepath.Join(dir, id)); err != nil {
			errs = append(errs, fmt.Errorf("show disk %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// show makes path a node of the disk's device. A node, and not a link: what is
// mounted from it then says so by this path.
func (s *Set) show(id, path string) error {
	device, err := s.find(id)
	if err != nil {
		return err
	}
	var have unix.Stat_t
	if err := unix.Stat(path, &have); err == nil && have.Mode&unix.S_IFMT == unix.S_IFBLK && have.Rdev == device {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(device)); err != nil {
		return fmt.Errorf("make the node %s: %w", path, err)
	}
	s.log.Info("a disk is there", "disk", id, "path", path)
	return nil
}

// vpdHeader is how many bytes of a SCSI disk's page 0x80 come before its serial number.
const vpdHeader = 4

// find returns the device of a disk: by a link of udev, or of the cloud, whose
// name ends in the ID, else by its serial number. Some clouds leave out dashes
// there (EC2: vol0123… for vol-0123…).
func (s *Set) find(id string) (device uint64, err error) {
	links, err := filepath.Glob(filepath.Join(s.root, "dev/disk/by-id/*"))
	if err != nil {
		return 0, err
	}
	plain := strings.ReplaceAll(id, "-", "")
	for _, link := range links {
		name := filepath.Base(link)
		for _, want := range []string{id, plain} {
			if before, found := strings.CutSuffix(name, want); !found || before != "" && !strings.ContainsAny(before[len(before)-1:], "-_") {
				continue
			}
			var st unix.Stat_t
			if err := unix.Stat(link, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
				return st.Rdev, nil
			}
		}
	}
	for _, pattern := range []string{"sys/block/*/device/serial", "sys/block/*/serial", "sys/block/*/device/vpd_pg80"} {
		serials, err := filepath.Glob(filepath.Join(s.root, pattern))
		if err != nil {
			return 0, err
		}
		for _, path := range serials {
			serial, err := os.ReadFile(path)
			if filepath.Base(path) == "vpd_pg80" {
				serial = serial[min(len(serial), vpdHeader):]
			}
			if text := strings.TrimSpace(string(serial)); err != nil || text != id && text != plain {
				continue
			}
			block, _, _ := strings.Cut(strings.TrimPrefix(path, filepath.Join(s.root, "sys/block")+"/"), "/")
			var major, minor uint32
			numbers, err := os.ReadFile(filepath.Join(s.root, "sys/block", block, "dev"))
			if err == nil {
				_, err = fmt.Sscanf(string(numbers), "%d:%d", &major, &minor)
			}
			if err != nil {
				return 0, fmt.Errorf("read the device number of %s: %w", block, err)
			}
			return unix.Mkdev(major, minor), nil
		}
	}
	return 0, ErrNotYet
}

// hide unmounts what is mounted of a disk, waits for what was written, and takes
// its path away.
func (s *Set) hide(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		if mapped, err := s.mapped(st.Rdev); err != nil || mapped != "" {
			return errors.Join(err, fmt.Errorf("%w: %s", ErrInUse, mapped))
		}
		mounts, err := s.mountsOf(st.Rdev)
		if err != nil {
			return err
		}
		for _, m := range slices.Backward(mounts) { // the latest first
			if err := unix.Unmount(m, unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("%w: %s", ErrInUse, m)
			} else if err != nil && !errors.Is(err, unix.EINVAL) { // the kubelet was first
				return fmt.Errorf("unmount %s: %w", m, err)
			}
		}
		// Exclusive: refused while it is mounted anywhere, also where we do not see
		// it, in the namespace of a container.
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("%w: it is mounted in a container", ErrInUse)
		case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOMEDIUM): // the device has been taken away
		case err != nil:
			return fmt.Errorf("open %s: %w", path, err)
		default:
			err := unix.Fsync(fd)
			_ = unix.Close(fd) // nothing was written by it
			if err != nil {
				return fmt.Errorf("write what is left to %s: %w", path, err)
			}
		}
	}
	s.log.Info("a disk is let go of", "path", path)
	return os.Remove(path)
}

// blockVolumes is where a kubelet maps the devices of block volumes of kind local,
// a file for each pod (pkg/volume/local).
const blockVolumes = "var/lib/kubelet/plugins/kubernetes.io~local-volume/volumeDevices"

// mapped returns where a kubelet has mapped a device for a pod, "" if it has not.
func (s *Set) mapped(device uint64) (string, error) {
	paths, err := filepath.Glob(filepath.Join(s.root, blockVolumes, "*", "*"))
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == device {
			return path, nil
		}
	}
	return "", nil
}

// mountsOf returns where file systems of a device are mounted, the latest last.
func (s *Set) mountsOf(device uint64) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	want := fmt.Sprintf("%d:%d", unix.Major(device), unix.Minor(device))
	var mounts []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// proc_pid_mountinfo(5): ID, parent, major:minor, root, mount point, …
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && fields[2] == want {
			mounts = append(mounts, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4]))
		}
	}
	return mounts, lines.Err()
}
