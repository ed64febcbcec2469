package host

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

// MustBeRoot says that this process is not root, in words for its user.
func MustBeRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("machines on this host need root: run as root, e.g. with sudo")
	}
	return nil
}

// Missing adds to an error that stands for "this kernel cannot" what mends it.
func Missing(err error, module string) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w (the kernel has no %s: modprobe %s, or use a kernel that has it)", err, module, module)
	}
	return err
}
