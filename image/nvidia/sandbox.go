package nvidia

import (
	"context"
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

// sandbox makes the folder of its first argument the root of what the others say, with the devices that a build
// reads. As root it runs that as nobody, which has no right to leave the root (chroot(2)).
const sandbox = `
cd "$1"
shift
for device in null zero random urandom; do
	: >"dev/$device"
	mount --bind "/dev/$device" "dev/$device"
done
exec chroot "$@"
`

// sandboxed returns a command that runs a program in a root of its own, without the machine's network, processes and
// devices, and without its rights: as nobody if root calls, whom the folder belongs to from then on; else as the caller
// in a user namespace.
func sandboxed(ctx context.Context, root, program string, args ...string) (*exec.Cmd, error) {
	unshare := []string{"--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child"}
	var chroot []string
	if os.Geteuid() == 0 {
		if err := give(root, nobody); err != nil {
			return nil, err
		}
		chroot = []string{fmt.Sprintf("--userspec=%d:%d", nobody, nobody), "--groups="}
	} else {
		unshare = append(unshare, "--map-root-user")
	}
	cmd := exec.CommandContext(ctx, "unshare", slices.Concat(unshare, []string{"sh", "-euc", sandbox, "sh", root},
		chroot, []string{".", program}, args)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = killDelay
	return cmd, nil
}

// give makes a folder, and all that is in it, a user's.
func give(root string, id int) error {
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id, id)
	})
}
