package nvidia

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobody is the user and group of what root runs in the sandbox.
const nobody = 65534

// errNotRoot says that there is no sandbox. In a user namespace the caller's programs would be root, with the right to leave their
// root (chroot(2)), and so would have the caller's files.
var errNotRoot = errors.New("only root can keep the compiler's programs, which come from packages, from your files: " +
	"run the build as root (sudo)")

// sandbox makes the folder of its first argument the root of what the others say, with the devices that a build
// reads. They are in a file system of their own: what a package has in dev is neither written to nor read. The caller is root, and runs
// the program as nobody, which has no right to leave the root (chroot(2)).
const sandbox = `
cd "$1"
shift
mount -t tmpfs -o mode=755,size=64k tmpfs dev
for device in null zero random urandom; do
	: >"dev/$device"
	mount --bind "/dev/$device" "dev/$device"
done
exec chroot "$@"
`

// sandboxed returns a command that runs a program in a root of its own, without the machine's network, processes and
// devices, and without its rights: as nobody, whom the folder belongs to from then on. It returns errNotRoot to others than root.
func sandboxed(ctx context.Context, root, program string, args ...string) (*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	if err := give(root, nobody); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "unshare", slices.Concat(
		[]string{"--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "sh", "-euc", sandbox, "sh", root},
		[]string{fmt.Sprintf("--userspec=%d:%d", nobody, nobody), "--groups=", ".", program}, args)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = killDelay
	return cmd, nil
}

// give makes a folder, and all that is in it, a user's. It refuses devices, which would be the machine's.
func give(root string, id int) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type()&fs.ModeDevice != 0 {
			return fmt.Errorf("a package has the device %s: want files, folders and links", path)
		}
		return os.Lchown(path, id, id)
	})
}
