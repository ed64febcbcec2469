package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/internal/agent/gpt"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// debianPackages are what Debian's recipe of its cloud image "genericcloud" names for Debian 13
// (debian-cloud-images, classes SYSTEM_BOOT, CLOUD, GENERIC, LINUX_VARIANT_CLOUD, TIME_SYSTEMD
// and EXTRAS), but for GRUB and the tool for its partition, since the kernel is booted
// directly; and the two that the agent needs there.
var debianPackages = []string{
	"linux-image-cloud-" + runtime.GOARCH,
	"apparmor", "apt-utils", "e2fsprogs", "init", "iptables", "iputils-ping", "less", "libnss-myhostname", "libnss-resolve",
	"libpam-systemd", "linux-sysctl-defaults", "nano", "netbase", "netplan.io", "polkitd", "sudo", "systemd-resolved",
	"systemd-timesyncd", "unattended-upgrades", "vim-tiny", "whiptail", "zstd",
	"cloud-guest-utils", "cloud-init", "cloud-initramfs-growroot", "openssh-server", "ssh-import-id",
	"apt-listchanges", "bash-completion", "bind9-host", "ca-certificates", "curl", "ethtool", "man-db", "manpages", "pciutils",
	"psmisc", "reportbug", "screen", "socat", "tcpdump", "traceroute", "uuid-runtime", "vim", "xz-utils",
	"nftables", "runc",
}

// debianHooks are what that recipe does to the tree of its packages: the network is
// systemd's, and what a machine has of its own is made at its first boot.
var debianHooks = []string{
	`chroot "$1" systemctl enable systemd-networkd.service systemd-resolved.service`,
	`printf 'blacklist pcspkr\nblacklist floppy\n' > "$1/etc/modprobe.d/blacklist.conf"`,
	`rm -f "$1"/etc/ssh/ssh_host_* && : > "$1/etc/machine-id" && : > "$1/etc/hostname"`,
}

// debianFiles are what the image has besides. cloud-init finds its source of data in the
// image, as it would on a disk for it, so that it asks nobody by network.
var debianFiles = map[string]string{
	"etc/fstab": "PARTUUID=" + debianRoot.String() + " / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1\n",

	"var/lib/cloud/seed/nocloud/meta-data":   "instance-id: i-1\nlocal-hostname: cell\n",
	"var/lib/cloud/seed/nocloud/user-data":   "#cloud-config\n{}\n",
	"var/lib/cloud/seed/nocloud/vendor-data": "",
}

// debianArguments are those of Debian's cloud images for the kernel, after the root, and the
// one without which an emulated machine on a busy host does not boot; see image/boot.
const debianArguments = "ro console=tty0 console=ttyS0,115200 earlyprintk=ttyS0,115200 consoleblank=0 no_timer_check"

// debianRoot is the ID of the root's partition.
var debianRoot = gpt.Random([16]byte([]byte("debian's root fs")))

const (
	// debianDisk is the size of the image in bytes, as Debian's own is; machines have a larger
	// disk, on which the root grows at the first boot.
	debianDisk = 3 << 30
)

// bootable is a disk to begin with, and what a machine boots with it.
type bootable struct {
	disk   vm.Disk
	kernel vm.Kernel
	// version says what it is made of.
	version string
}

// debianImage makes Debian's cloud image, as far as it can be made of Debian's packages, with
// the agent as itzo install puts it there, in dir. The tree of the packages is kept in kept.
func debianImage(ctx context.Context, programs, kept, dir string) (b bootable, err error) {
	packed, err := debianTree(ctx, kept)
	if err != nil {
		return b, err
	}
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
	if err := command(ctx, "tar", "-x", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", tree, "-f", packed); err != nil {
		return b, err
	}
	for name, text := range debianFiles {
		if err := writeBelow(tree, name, text); err != nil {
			return b, err
		}
	}
	if err := installAgent(ctx, programs, tree, dir); err != nil {
		return b, err
	}
	b.disk = vm.Disk{File: filepath.Join(dir, "debian.raw"), Format: "raw"}
	b.kernel = vm.Kernel{
		Linux:     filepath.Join(dir, "vmlinuz"),
		Initrd:    filepath.Join(dir, "initrd.img"),
		Arguments: "root=PARTUUID=" + debianRoot.String() + " " + debianArguments,
	}
	if b.version, err = debianVersions(tree); err != nil {
		return b, err
	}
	for link, to := range map[string]string{"vmlinuz": b.kernel.Linux, "initrd.img": b.kernel.Initrd} {
		if err := command(ctx, "cp", "-L", filepath.Join(tree, link), to); err != nil {
			return b, err
		}
	}
	return b, debianWrite(ctx, tree, b.disk.File)
}

// debianTree makes the tree of the packages as a tar file, unless it is there.
func debianTree(ctx context.Context, kept string) (file string, err error) {
	args := []string{
		"--quiet", "--variant=minbase", "--format=tar", "--include=" + strings.Join(debianPackages, ","),
	}
	for _, h := range debianHooks {
		args = append(args, "--customize-hook="+h)
	}
	args = append(args, debian.Suite)
	sum := sha256.Sum256([]byte(strings.Join(args, "\x00")))
	file = filepath.Join(kept, "debian-"+hex.EncodeToString(sum[:6])+".tar")
	if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return "", err
	}
	progress("making Debian's cloud image of its packages, once: some minutes")
	if err := command(ctx, "mmdebstrap", append(args, file+".new")...); err != nil {
		return "", errors.Join(err, os.Remove(file+".new"))
	}
	return file, os.Rename(file+".new", file)
}

// installAgent puts the agent into a tree as docs/own-image.md says.
func installAgent(ctx context.Context, programs, tree, dir string) (err error) {
	from := filepath.Join(dir, "agent")
	if err := os.Mkdir(from, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(from)) }()
	if err := command(ctx, filepath.Join(programs, "kip-image"), "agent", "-programs="+programs, "-out="+from); err != nil {
		return err
	}
	if err := command(ctx, "tar", "-xz", "-C", from, "-f", filepath.Join(from, "kip-agent-"+runtime.GOARCH+".tar.gz")); err != nil {
		return err
	}
	return command(ctx, filepath.Join(from, "kip-agent", "itzo"), "install", "--root", tree)
}

// debianVersions reads from the list of a tree's packages what of it a start depends on.
func debianVersions(tree string) (string, error) {
	status, err := os.ReadFile(filepath.Join(tree, "var/lib/dpkg/status"))
	if err != nil {
		return "", err
	}
	var all []string
	for _, name := range []string{"linux-image-cloud-" + runtime.GOARCH, "systemd", "cloud-init"} {
		_, about, found := strings.Cut("\n"+string(status), "\nPackage: "+name+"\n")
		about, _, _ = strings.Cut(about, "\n\n")
		_, version, versioned := strings.Cut("\n"+about, "\nVersion: ")
		if !found || !versioned {
			return "", fmt.Errorf("the tree of Debian's packages has no %s", name)
		}
		version, _, _ = strings.Cut(version, "\n")
		all = append(all, name+" "+version)
	}
	return strings.Join(all, ", "), nil
}

// debianWrite writes a disk with one partition, which has the tree as an ext4.
func debianWrite(ctx context.Context, tree, disk string) (err error) {
	f, err := os.Create(disk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(debianDisk); err != nil {
		return err
	}
	table := gpt.Table{ID: gpt.Random([16]byte([]byte("debian cloud img"))), Sectors: debianDisk / gpt.Sector}
	root := gpt.Partition{
		Type:  gpt.Roots[runtime.GOARCH],
		ID:    debianRoot,
		First: gpt.Align,
		Last:  (table.LastUsable()+1)/gpt.Align*gpt.Align - 1,
		Name:  "root",
	}
	table.Partitions = []gpt.Partition{root}
	if err := table.Write(f); err != nil {
		return err
	}
	return command(ctx, "mkfs.ext4", "-q", "-F", "-d", tree, "-E", fmt.Sprintf("offset=%d", root.First*gpt.Sector), disk,
		fmt.Sprintf("%dk", root.Sectors()*gpt.Sector/1024))
}

// writeBelow writes a file of a tree, with its folders.
func writeBelow(tree, name, text string) error {
	file := filepath.Join(tree, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// command runs a program, whose output is in the error if it fails.
func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("run %s %s: %w: %s", name, args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
