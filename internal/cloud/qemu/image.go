package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// A machine boots a copy of the image in the state folder, named by its content: whatever
// becomes of the file that it was copied from, the machines that have begun go on with
// theirs.

const (
	imagesFolder = "images"
	// imageLink is in a machine's folder, and leads to the folder of its image.
	imageLink = "image"
	diskFile  = "disk"
	argsFile  = "arguments"
	efiFile   = "efi" // until it is unpacked
)

// image is what a machine boots.
type image struct {
	dir    string // of the state folder
	format string // of diskFile in it
	args   string // of the kernel
	// version is Kip's of which it was built.
	version string
}

// manifest is what kip-image says of an image; see image/boot.
type manifest struct {
	Version string   `json:"version"`
	Arch    string   `json:"arch"`
	Root    string   `json:"root"`
	Outputs []output `json:"outputs"`
	EFI     output   `json:"efi"`
}

type output struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// What is beside an image's disk; see image/boot.
const manifestSuffix, efiSuffix = ".manifest.json", ".efi"

// rootArgument is how the kernel's arguments name the root; see image/boot.
const rootArgument = "kip.root="

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// readManifest returns what is said of an image, and its digest.
func readManifest(file string) (m manifest, sum string, err error) {
	stem := strings.TrimSuffix(file, filepath.Ext(file))
	b, err := os.ReadFile(stem + manifestSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return m, "", fmt.Errorf("image %s: want one that kip-image built (make image), with its manifest beside it: %w", file, err)
	}
	if err != nil {
		return m, "", err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, "", fmt.Errorf("read %s.manifest.json: %w", stem, err)
	}
	if m.Arch != "amd64" {
		return m, "", fmt.Errorf("image %s is for %q: want amd64", file, m.Arch)
	}
	sums := map[string]string{}
	for _, o := range append(m.Outputs, m.EFI) {
		sums[o.Name] = o.SHA256
	}
	names := []string{filepath.Base(stem) + efiSuffix, filepath.Base(file)}
	if m.EFI == (output{}) { // a kip-image before said nothing of it
		names = names[1:]
	}
	for _, name := range names {
		var is bool
		if sum, is = sums[name]; !is {
			return m, "", fmt.Errorf("%s%s does not know %s: it is of another build", stem, manifestSuffix, name)
		}
		if !digest.MatchString(sum) {
			return m, "", fmt.Errorf("%s%s has the digest %q of %s: want 64 hexadecimal digits", stem, manifestSuffix, sum, name)
		}
	}
	return m, sum, nil
}

// install has an image in the state folder, and returns it. It is repeated at each start;
// what an earlier one left in part is made again.
func install(ctx context.Context, file, state string) (_ image, err error) {
	m, sum, err := readManifest(file)
	if err != nil {
		return image{}, err
	}
	format := strings.TrimPrefix(filepath.Ext(file), ".")
	if format != "qcow2" && format != "raw" {
		return image{}, fmt.Errorf("image %s: want a file of form qcow2 or raw, with that at the end of its name", file)
	}
	// Another kernel is another image, also with the same root.
	i := image{dir: filepath.Join(state, imagesFolder, sum[:32]+m.EFI.SHA256[:min(32, len(m.EFI.SHA256))]), format: format, version: m.Version}
	if args, err := os.ReadFile(filepath.Join(i.dir, argsFile)); err == nil {
		i.args = string(args) // stored last, so that all is there
		return i, nil
	}
	if err := os.RemoveAll(i.dir); err != nil {
		return image{}, err
	}
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return image{}, err
	}
	if err := copyVerified(ctx, filepath.Join(i.dir, diskFile), file, sum); err != nil {
		return image{}, fmt.Errorf("copy the image: %w", err)
	}
	program := strings.TrimSuffix(file, filepath.Ext(file)) + efiSuffix
	if m.EFI != (output{}) {
		to := filepath.Join(i.dir, efiFile)
		if err := copyVerified(ctx, to, program, m.EFI.SHA256); err != nil {
			return image{}, fmt.Errorf("copy the EFI program, which kip-image writes beside the image: %w", err)
		}
		defer func() { err = errors.Join(err, os.Remove(to)) }()
		program = to
	}
	kernel, err := vm.UnpackKernel(program, i.dir)
	if err != nil {
		return image{}, err
	}
	i.args = kernel.Arguments
	if !strings.Contains(i.args, rootArgument+m.Root) || m.Root == "" {
		return image{}, fmt.Errorf("the EFI program beside %s boots another root than that of the image: it is of another build", file)
	}
	tmp := filepath.Join(i.dir, argsFile+".new")
	if err := os.WriteFile(tmp, []byte(i.args), 0o600); err != nil {
		return image{}, err
	}
	// A host that crashes must not keep the last of it alone.
	for _, name := range []string{diskFile, vm.LinuxFile, vm.InitrdFile, argsFile + ".new", "."} {
		if err := stored(filepath.Join(i.dir, name)); err != nil {
			return image{}, err
		}
	}
	return i, errors.Join(os.Rename(tmp, filepath.Join(i.dir, argsFile)), stored(i.dir))
}

// stored returns when a file, or what names a folder has, outlives a crash of the host.
func stored(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// tellVersion logs that an image is of another version than Kip's. Its machines run: the agent
// in it says its version when it joins, too, and what it does not know it refuses by name.
func (i image) tellVersion(log *slog.Logger, kip string) {
	if kip == "" || i.version == kip {
		return
	}
	log.Warn("the image is of another version than Kip: build one of Kip's (make image), unless this is meant", "image", i.version, "kip", kip)
}

// copyVerified copies a file of which the digest is known. Blocks of zeros become holes.
func copyVerified(ctx context.Context, to, from, sum string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	h := sha256.New()
	block, zeros := make([]byte, 256<<10), make([]byte, 256<<10)
	var at int64
	for ctx.Err() == nil {
		n, readErr := io.ReadFull(in, block)
		h.Write(block[:n])
		if string(block[:n]) != string(zeros[:n]) {
			if _, err := out.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF) {
			if got := hex.EncodeToString(h.Sum(nil)); got != sum {
				return fmt.Errorf("%s is not as its manifest says: it was cut off or changed (sha256 %s, want %s)", from, got, sum)
			}
			return out.Truncate(at)
		}
		if readErr != nil {
			return readErr
		}
	}
	return ctx.Err()
}

// prune removes the images that no machine boots, but for one.
func prune(state, machines, keep string) error {
	used := map[string]bool{filepath.Base(keep): true}
	links, err := filepath.Glob(filepath.Join(machines, "*", imageLink))
	if err != nil {
		return err
	}
	for _, l := range links {
		to, err := os.Readlink(l)
		if err != nil {
			return err
		}
		used[filepath.Base(to)] = true
	}
	all, err := os.ReadDir(filepath.Join(state, imagesFolder))
	if err != nil {
		return err
	}
	for _, e := range all {
		if !used[e.Name()] {
			if err := os.RemoveAll(filepath.Join(state, imagesFolder, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// overlay makes a disk of a machine over that of its image, in the machine's folder.
func (i image) overlay(ctx context.Context, dir string, size int64) error {
	// The folder's name is unique to the content; a link of an earlier try leads to the same.
	link := filepath.Join(dir, imageLink)
	if err := os.Symlink(i.dir, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	cmd := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", i.format, "-b", imageLink+"/"+diskFile,
		rootFile, fmt.Sprint(size))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make a disk of %d bytes over the image: %w: %s", size, err, firstLine(string(out)))
	}
	return os.Chmod(filepath.Join(dir, rootFile), 0o600)
}
