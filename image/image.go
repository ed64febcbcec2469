package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/configs"
)

// layout is part of what a tree is named by: raise it when the code below makes
// another tree of the same inputs.
const layout = "3"

// epoch is the time of every file, so that equal inputs make equal trees.
var epoch = time.Unix(0, 0)

// lockRetry is how often a build looks whether another one has ended.
const lockRetry = 50 * time.Millisecond

// HostCertificates is where Debian and its like keep the certificate
// authorities in one file.
const HostCertificates = "/etc/ssl/certs/ca-certificates.crt"

// Options say what goes into the tree. All programs that have a field of their own
// are static executables.
type Options struct {
	// Dir is the root tree's path. It is a symbolic link to a tree beside it
	// that is named by a hash of the inputs; machines that run on an older tree
	// keep it.
	Dir string
	// Itzo is the whole itzo, ItzoContainerd the one without the kubelet, ItzoLite
	// the one also without containerd.
	Itzo, ItzoContainerd, ItzoLite string
	Runc                           string
	Busybox                        string
	// Pause is the program of the pause image.
	Pause string
	// Certificates is a PEM file of certificate authorities, for pulls from
	// registries; empty for none.
	Certificates string
	// Programs are more programs, by their path in the tree: Portmap, what
	// HostPrograms found, and what else a machine is to have. They may be dynamic
	// executables: the libraries that they need on this host come with them.
	Programs map[string]string
}

// Build makes the tree, or finds that it is there already. It is atomic: Dir
// leads to a whole tree at any time.
func Build(ctx context.Context, o Options) error {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("build the cell's root: %w", err)
	}
	o.Dir = dir
	in, err := o.inputs(ctx)
	if err != nil {
		return fmt.Errorf("build the cell's root: %w", err)
	}
	sum, err := hash(in)
	if err != nil {
		return fmt.Errorf("build the cell's root: %w", err)
	}
	unlock, err := lock(ctx, o.Dir)
	if err != nil {
		return fmt.Errorf("build the cell's root: %w", err)
	}
	defer unlock()
	tree := o.Dir + "-" + sum
	if _, err := os.Stat(tree); errors.Is(err, fs.ErrNotExist) {
		if err := o.assemble(ctx, in, tree); err != nil {
			return fmt.Errorf("build the cell's root %s: %w", tree, err)
		}
	} else if err != nil {
		return fmt.Errorf("build the cell's root: %w", err)
	}
	if err := point(o.Dir, tree); err != nil {
		return fmt.Errorf("build the cell's root: %w", err)
	}
	if err := prune(o.Dir, tree); err != nil {
		return fmt.Errorf("remove older roots of cells: %w", err)
	}
	return nil
}

// lock keeps two builds of the same tree apart, also those of two processes.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another build of %s: %w", dir, ctx.Err())
		case <-time.After(lockRetry):
		}
	}
}

// input is a file that the tree is made of, by its place in it. One with no place
// goes into an archive.
type input struct {
	option, from, to string
	mode             fs.FileMode
}

// inputs are the files that the tree is made of.
func (o Options) inputs(ctx context.Context) ([]input, error) {
	in := []input{
		{"Itzo", o.Itzo, "bin/itzo-components", 0o755},
		{"ItzoContainerd", o.ItzoContainerd, "bin/itzo-containerd", 0o755},
		{"ItzoLite", o.ItzoLite, "bin/itzo", 0o755},
		{"Runc", o.Runc, "usr/bin/runc", 0o755},
		{"Busybox", o.Busybox, "bin/busybox", 0o755},
		{"Pause", o.Pause, "", 0},
	}
	for _, to := range slices.Sorted(maps.Keys(o.Programs)) {
		in = append(in, input{"Programs[" + to + "]", o.Programs[to], to, 0o755})
	}
	var errs []error
	for _, i := range in {
		if i.from == "" {
			errs = append(errs, fmt.Errorf("%s: no file given", i.option))
		} else if _, err := os.Stat(i.from); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", i.option, err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if o.Certificates != "" {
		in = append(in, input{"Certificates", o.Certificates, "etc/ssl/certs/ca-certificates.crt", 0o644})
	}
	seen := map[string]bool{}
	for _, to := range slices.Sorted(maps.Keys(o.Programs)) {
		libraries, err := sharedLibraries(ctx, o.Programs[to])
		if err != nil {
			return nil, fmt.Errorf("option Programs[%s]: %w", to, err)
		}
		for _, l := range libraries {
			if !seen[l] {
				seen[l] = true
				in = append(in, input{"Programs[" + to + "]", l, strings.TrimPrefix(l, "/"), 0o755})
			}
		}
	}
	return in, nil
}

// hash names the tree: 16 hex digits of a hash of all that it is made of.
func hash(inputs []input) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, layout, configs.PauseImage, runtime.GOARCH)
	var errs []error
	for _, in := range inputs {
		file := sha256.New()
		if err := readInto(file, in.from); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", in.option, err))
			continue
		}
		fmt.Fprintf(h, "%s %s %x\n", in.option, in.to, file.Sum(nil))
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), errors.Join(errs...)
}

func readInto(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// directories of the tree with their modes. The lowest ones are also mount
// points: the clouds' for devices and disks, Linux' own otherwise.
var directories = []struct {
	path string
	mode fs.FileMode
}{
	{"bin", 0o755}, {"sbin", 0o755}, {"usr/bin", 0o755}, {"usr/sbin", 0o755},
	{"dev", 0o755}, {"proc", 0o555}, {"sys", 0o555}, {"run", 0o755},
	{"tmp", 0o777 | fs.ModeSticky}, {"root", 0o700}, {"mnt", 0o755},
	{"etc/ssl/certs", 0o755}, {"usr/share/kip", 0o755},
	{"var/log", 0o755}, {"var/tmp", 0o777 | fs.ModeSticky}, {"var/lib/cloud/seed", 0o700},
	{"var/lib/containerd", 0o711}, {"var/lib/kubelet", 0o755}, {"var/lib/itzo", 0o700},
}

// files of the tree that are text.
var files = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
	"etc/group":         "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
	"etc/hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	"etc/hostname":      "cell\n",
	// By it nft names protocols. Where it prints numbers a kube-proxy that starts
	// again takes its own rules for others, and removes them.
	"etc/protocols":   "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n",
	"etc/resolv.conf": "",
	"etc/machine-id":  "",
	"etc/os-release":  "NAME=\"Kip cell\"\nID=kip\nPRETTY_NAME=\"Kip cell\"\n",
}

// assemble makes the tree under a name of its own and then gives it its name.
func (o Options) assemble(ctx context.Context, in []input, tree string) (err error) {
	if err := os.MkdirAll(filepath.Dir(tree), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(tree), ".new-"+filepath.Base(tree)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	for _, d := range directories {
		if err := os.MkdirAll(filepath.Join(tmp, d.path), 0o755); err != nil {
			return err
		}
	}
	for p, text := range files {
		if err := write(filepath.Join(tmp, p), strings.NewReader(text), 0o644); err != nil {
			return err
		}
	}
	for _, in := range in {
		if in.to == "" {
			continue
		}
		if err := copyFile(in.from, filepath.Join(tmp, in.to), in.mode); err != nil {
			return err
		}
	}
	if err := pauseArchive(o.Pause, filepath.Join(tmp, "usr/share/kip/pause.tar")); err != nil {
		return fmt.Errorf("make the pause image: %w", err)
	}
	if err := o.links(ctx, tmp); err != nil {
		return err
	}
	if err := settle(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, tree)
}

// links makes itzo's names and busybox' applets, where nothing else has the name.
func (o Options) links(ctx context.Context, root string) error {
	links := map[string]string{
		"sbin/init":   "/bin/itzo",
		"var/run":     "../run",
		"etc/mtab":    "/proc/self/mounts",
		"bin/kubelet": "itzo-components", "bin/containerd": "itzo-containerd",
	}
	out, err := exec.CommandContext(ctx, o.Busybox, "--list-full").Output()
	if err != nil {
		return fmt.Errorf("list the applets of %s: %w", o.Busybox, err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if p := path.Clean(applet); fs.ValidPath(p) && links[p] == "" {
			links[p] = "/bin/busybox"
		}
	}
	for p, target := range links {
		full := filepath.Join(root, p)
		if _, err := os.Lstat(full); err == nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, full); err != nil {
			return err
		}
	}
	return nil
}

// settle gives every directory its mode, whatever the umask, and everything the
// same time.
func settle(root string) error {
	modes := map[string]fs.FileMode{}
	for _, d := range directories {
		modes[filepath.Join(root, d.path)] = d.mode
	}
	var dirs []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, p)
			return nil
		}
		if d.Type().IsRegular() {
			return os.Chtimes(p, epoch, epoch)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range dirs {
		mode, ok := modes[d]
		if !ok {
			mode = 0o755
		}
		if err := errors.Join(os.Chmod(d, mode), os.Chtimes(d, epoch, epoch)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return write(to, f, mode)
}

func write(to string, r io.Reader, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	// Whatever the umask; and on the disk before the tree has its name.
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// pauseArchive writes an image archive whose only file is the pause program.
func pauseArchive(program, to string) error {
	layer, err := pauseLayer(program)
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = runtime.GOARCH, "linux", v1.Time{Time: epoch}
	config.Config = v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	tag, err := name.NewTag(configs.PauseImage, name.StrictValidation)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := tarball.Write(tag, img, &archive); err != nil {
		return err
	}
	return write(to, &archive, 0o644)
}

func pauseLayer(program string) ([]byte, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err = w.WriteHeader(&tar.Header{
		Name:     "pause",
		Mode:     0o755,
		Size:     int64(len(content)),
		ModTime:  epoch,
		Typeflag: tar.TypeReg,
	})
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	return b.Bytes(), w.Close()
}

// point makes the link dir lead to tree, at once.
func point(dir, tree string) error {
	if to, err := os.Readlink(dir); err == nil && to == filepath.Base(tree) {
		return nil
	}
	tmp := dir + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(tree), tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// prune removes trees of earlier inputs that no machine is mounted on, and what
// a killed Build left.
func prune(dir, keep string) error {
	old, err := filepath.Glob(dir + "-????????????????")
	if err != nil {
		return err
	}
	half, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".new-"+filepath.Base(dir)+"-*"))
	if err != nil {
		return err
	}
	if len(old)+len(half) <= 1 {
		return nil
	}
	mounts, err := allMounts()
	if err != nil {
		return err
	}
	// A machine that was launched by the link's name may be on any tree.
	anyTree := strings.Contains(mounts, "="+dir+",") || strings.Contains(mounts, "="+dir+":")
	var errs []error
	for _, tree := range old {
		if tree == keep || anyTree || strings.Contains(mounts, tree) {
			continue
		}
		errs = append(errs, os.RemoveAll(tree))
	}
	for _, tree := range half {
		errs = append(errs, os.RemoveAll(tree))
	}
	return errors.Join(errs...)
}

// allMounts returns the mounts of every process on the host: each machine has a
// mount namespace of its own.
func allMounts() (string, error) {
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, t := range tables {
		if text, err := os.ReadFile(t); err == nil { // else the process has ended
			b.Write(text)
		}
	}
	return b.String(), nil
}
