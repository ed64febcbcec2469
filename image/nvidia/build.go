package nvidia

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"
	"unicode"

	"github.com/elotl/kip/image/debian"
)

// compiler are Debian's packages that build the modules: their source, the kernel's headers, the compiler by which
// the kernel was built, and what these run and are linked with. ABI is the kernel's, as debian.Resolve takes it.
var compiler = []string{
	sourcePackage,
	"linux-headers-ABI-cloud-ARCH", "linux-headers-ABI-common", "linux-kbuild-ABI",
	"gcc-14", "gcc-14-x86-64-linux-gnu", "gcc-14-base", "cpp-14", "cpp-14-x86-64-linux-gnu", "libgcc-14-dev", "libcc1-0",
	"binutils", "binutils-x86-64-linux-gnu", "binutils-common", "make",
	"coreutils", "dash", "findutils", "grep", "mawk", "sed",
	"libacl1", "libattr1", "libbinutils", "libc6", "libctf-nobfd0", "libctf0", "libelf1t64", "libgcc-s1", "libgmp10", "libgprofng0",
	"libisl23", "libjansson4", "libmpc3", "libmpfr6", "libpcre2-8-0", "libselinux1", "libsframe1", "libssl3t64", "libstdc++6", "libzstd1",
	"zlib1g",
}

const (
	sourcePackage = "contrib/nvidia-open-kernel-source"
	// sourceFile is in that package, and sourceDir in that archive.
	sourceFile = "usr/src/nvidia-open-kernel.tar.xz"
	sourceDir  = "modules/nvidia-open-kernel"
)

// compile builds the modules. The first argument is the kernel's release, the second how many processes there may be.
// NVIDIA's own names of modules differ from those of their files: an exclusion that it does not know would do nothing.
const compile = `
cd "/build/` + sourceDir + `"
make -j"$2" KERNEL_UNAME="$1" NV_EXCLUDE_KERNEL_MODULES="nvidia-drm nvidia-modeset nvidia-peermem nvidia-vgpu-vfio" modules
strip --strip-debug nvidia.ko nvidia-uvm.ko
`

// built are the files that it makes.
var built = []string{"nvidia.ko", "nvidia-uvm.ko"}

const (
	// saidMost bounds what an error has of a build's output, in bytes from its end.
	saidMost = 4000
	// killDelay is how long the output of a build that was ended is waited for.
	killDelay = 5 * time.Second
)

// Builder builds the kernel modules.
type Builder struct {
	// Release is the kernel's, as uname says it.
	Release string
	// Lock pins the packages. They are fetched from Mirrors. Cache has them, and modules that were built before.
	Lock    debian.Lock
	Mirrors debian.Mirrors
	Cache   string
	// Check returns an error for modules that the image's kernel would not load. They are not kept then.
	Check func(modules map[string][]byte) error
	// Progress is told each step.
	Progress func(string)
}

// Modules returns the modules' files, by their names. To build them it needs root, and the programs unshare, mount and chroot.
func (b Builder) Modules(ctx context.Context) (map[string][]byte, error) {
	packages := slices.DeleteFunc(slices.Clone(b.Lock), InImage)
	sum := sha256.Sum256([]byte(b.Release + sandbox + compile + string(fourArguments) + packages.String()))
	dir := filepath.Join(b.Cache, "nvidia-"+hex.EncodeToString(sum[:8]))
	if modules, err := read(dir, "."); !errors.Is(err, fs.ErrNotExist) {
		return modules, err
	}
	if os.Geteuid() != 0 { // before packages are fetched
		return nil, fmt.Errorf("build NVIDIA's kernel modules: %w", errNotRoot)
	}
	if err := os.MkdirAll(b.Cache, 0o755); err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp(b.Cache, ".nvidia-")
	if err != nil {
		return nil, err
	}
	// The build's mounts are in a namespace of their own, so that this removes nothing of /dev.
	defer os.RemoveAll(root)
	if err := b.unpack(ctx, packages, root); err != nil {
		return nil, err
	}
	b.Progress("building NVIDIA's kernel modules, which takes some minutes")
	if err := b.compile(ctx, root); err != nil {
		return nil, err
	}
	modules, err := read(root, path.Join("build", sourceDir))
	if err == nil && b.Check != nil {
		err = b.Check(modules)
	}
	if err != nil {
		return nil, fmt.Errorf("build NVIDIA's kernel modules: %w", err)
	}
	return modules, keep(dir, modules)
}

// moduleMost bounds the size of a module in bytes, some times what NVIDIA's largest has.
const moduleMost = 256 << 20

// read returns the modules in a folder below root. What has made them may have put anything in their place: it follows no link out of
// root, and reads regular files alone.
func read(root, dir string) (map[string][]byte, error) {
	below, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer below.Close()
	modules := map[string][]byte{}
	for _, name := range built {
		file := path.Join(dir, name)
		info, err := below.Lstat(file)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || info.Size() > moduleMost {
			return nil, fmt.Errorf("%s is no module (%s, %d bytes): want a regular file of at most %d bytes",
				file, info.Mode(), info.Size(), moduleMost)
		}
		if modules[name], err = below.ReadFile(file); err != nil {
			return nil, err
		}
	}
	return modules, nil
}

// keep stores modules in a folder, which is there when it has all.
func keep(dir string, modules map[string][]byte) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".nvidia-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for name, b := range modules {
		if err := os.WriteFile(filepath.Join(tmp, name), b, 0o644); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another build has
		return err
	}
	return nil
}

// unpack makes a root that has the packages, of which nothing is run.
func (b Builder) unpack(ctx context.Context, packages debian.Lock, root string) error {
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "tmp", "build"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{
		"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/awk": "mawk",
	} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			return err
		}
	}
	for _, p := range packages {
		b.Progress("package " + p.Name + " " + p.Version)
		deb, err := p.Fetch(ctx, b.Mirrors, b.Cache)
		if err != nil {
			return err
		}
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, root).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s %s: %w: %s", p.Name, p.Version, err, bytes.TrimSpace(out))
		}
	}
	headers := filepath.Join(root, "usr/src/linux-headers-"+b.Release)
	if _, err := os.Stat(headers); err != nil {
		return fmt.Errorf("the image's kernel is %s, and the lock of the variant %s has other headers: want both of one version, which"+
			" make image-lock pins: %w", b.Release, Variant, err)
	}
	// With it, modules would get type information, by a program of its own (pahole).
	if err := os.Remove(filepath.Join(headers, "vmlinux")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	source := exec.CommandContext(ctx, "tar", "-xJf", filepath.Join(root, sourceFile), "-C", filepath.Join(root, "build"), "--no-same-owner")
	if out, err := source.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack the source of NVIDIA's modules: %w: %s", err, bytes.TrimSpace(out))
	}
	return adapt(root)
}

func (b Builder) compile(ctx context.Context, root string) error {
	cmd, err := sandboxed(ctx, root, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin", "LC_ALL=C",
		"sh", "-euc", compile, "sh", b.Release, strconv.Itoa(runtime.NumCPU()))
	if err != nil {
		return err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("build NVIDIA's kernel modules for %s: %w: %s", b.Release, err, printable(out[max(0, len(out)-saidMost):]))
	}
	return nil
}

// printable replaces what a terminal could take for a command.
func printable(text []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
