package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/test/network"
)

// Claim claims a network for a world, or for another run of kip-dev, until this process ends. Its state folder
// is under .kip/ in the repository's folder; its name is name and a number.
//
// Before that it removes what killed runs left, also those of other names and of other checkouts.
func Claim(name string) (*network.Network, error) {
	root, err := Repository()
	if err != nil {
		return nil, err
	}
	n, err := network.Worlds.Claim(filepath.Join(root, ".kip", name), func(earlier network.Network) error {
		return clean(filepath.Join(root, "bin", "kip-dev"), earlier)
	})
	return &n, err
}

// MustClaim is Claim for the variables of a test package. It panics where Claim fails.
func MustClaim(name string) *network.Network {
	n, err := Claim(name)
	if err != nil {
		panic(err)
	}
	return n
}

// clean removes what a run left that was killed. Of a run that has ended by itself it removes nothing: its logs
// may still be read.
func clean(kipDev string, n network.Network) error {
	switch running, err := isLocked(filepath.Join(n.State, "lock")); {
	case err != nil:
		return err
	case running: // a kip-dev whose test was killed ends by itself
		return network.ErrInUse
	}
	pids, err := child.Marked(mark(n.State))
	if err != nil {
		return err
	}
	if _, err := net.InterfaceByName(n.Bridge); err != nil && len(pids) == 0 {
		return nil // the bridge goes last
	}
	out, err := exec.Command(kipDev, "clean", "--state", n.State, "--bridge", n.Bridge, "--cidr", n.CIDR.String()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kip-dev clean: %w: %s", err, out)
	}
	fmt.Fprintf(os.Stderr, "of an earlier run in %s: %s", n.State, out)
	return nil
}

// mark is in the environment of all that kip-dev starts in a state folder.
func mark(state string) string { return "KIP_DEV_STATE=" + state }

// isLocked reports whether a process has locked a file.
func isLocked(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // which frees it again
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
