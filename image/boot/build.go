package boot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/elotl/kip/image"
	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/gpt"
	"github.com/elotl/kip/internal/agent/machine"
	"github.com/elotl/kip/internal/version"
)

const (
	// espSectors is the size of the ESP: 64 MiB, of which the EFI program has a third.
	espSectors = 64 << 20 / gpt.Sector
	// diskUnit is of what a disk's size is a multiple: Google Cloud takes whole GiB, and
	// EC2's smallest disk has one.
	diskUnit = 1 << 30
)

// RootArgument is how the kernel's arguments name the root's partition.
const RootArgument = "kip.root="

// efiNames are what firmware starts of a disk of which it knows nothing, and stubs the
// EFI programs that start a kernel, by architecture.
var (
	efiNames = map[string]string{"amd64": "BOOTX64.EFI", "arm64": "BOOTAA64.EFI"}
	stubs    = map[string]string{"amd64": "linuxx64.efi.stub", "arm64": "linuxaa64.efi.stub"}
)

// Options say what goes into an image, and where it goes.
type Options struct {
	// Arch is amd64 or arm64, whatever this machine is.
	Arch string
	// Variant is what the image has besides: "" for nothing, nvidia.Variant for NVIDIA's driver.
	Variant string
	// Version is Kip's.
	Version string
	// Programs is the folder with what make builds: the itzos, itzo-boot, runc, portmap
	// and pause, for Arch.
	Programs string
	// Lock pins Debian's packages. They are fetched from Mirrors, and kept in Cache.
	Lock    debian.Lock
	Mirrors debian.Mirrors
	// VariantLock pins the packages of the Variant.
	VariantLock debian.Lock
	Cache       string
	// Out is the folder of the image, and Formats the forms that are wanted.
	Out     string
	Formats []string
	// Progress is told each step.
	Progress func(string)

	// unit is of what the disk's size is a multiple; 0 for diskUnit.
	unit int64
	// modules builds the variant's kernel modules; nil for what its package does.
	modules func(context.Context) (map[string][]byte, error)
}

// own are Kip's programs in the root, by their names in Options.Programs.
var own = map[string]string{
	"itzo":            "usr/bin/itzo-components",
	"itzo-containerd": "usr/bin/itzo-containerd",
	"itzo-lite":       "usr/bin/itzo",
	"itzo-boot":       "usr/sbin/modprobe",
	"runc":            "usr/bin/runc",
	"portmap":         strings.TrimPrefix(configs.CNIPluginDir, "/") + "/portmap",
}

// Build makes the image and returns its manifest. The files of Out are replaced one by
// one, each as a whole.
func Build(ctx context.Context, o Options) (Manifest, error) {
	m, err := o.build(ctx)
	if err != nil {
		return Manifest{}, fmt.Errorf("build the boot image for %s: %w", o.Arch, err)
	}
	return m, nil
}

func (o Options) build(ctx context.Context) (Manifest, error) {
	if efiNames[o.Arch] == "" {
		return Manifest{}, fmt.Errorf("there are images for %s only", strings.Join(slices.Sorted(maps.Keys(efiNames)), " and "))
	}
	if err := errors.Join(o.checkVariant(), checkFormats(o.Formats)); err != nil {
		return Manifest{}, err
	}
	if o.unit == 0 {
		o.unit = diskUnit
	}
	packages, err := o.Lock.Of(o.Arch)
	if err != nil {
		return Manifest{}, err
	}
	files, err := o.read(ctx, packages)
	if err != nil {
		return Manifest{}, err
	}
	programs := map[string][]byte{}
	var errs []error
	for name, p := range own {
		programs[p], err = os.ReadFile(filepath.Join(o.Programs, name))
		errs = append(errs, err)
	}
	pause, err := os.ReadFile(filepath.Join(o.Programs, "pause"))
	if err := errors.Join(append(errs, err)...); err != nil {
		return Manifest{}, fmt.Errorf("a program of Kip's (make image builds them): %w", err)
	}
	o.Progress("choosing the kernel's modules")
	k, err := readKernel(files)
	if err != nil {
		return Manifest{}, err
	}
	d, err := o.driver(ctx, k)
	if err != nil {
		return Manifest{}, err
	}
	all, err := k.choose(ctx, o.uses(), o.Arch, func(use) bool { return true })
	if err != nil {
		return Manifest{}, err
	}
	packages = append(packages, d.packages...)
	m := o.manifest(k, packages, programs)
	m.GPUs = d.gpus
	root, err := o.rootTree(files, programs)
	if err != nil {
		return Manifest{}, err
	}
	if err := d.addTo(root, o.Arch, files); err != nil {
		return Manifest{}, err
	}
	k.install(root, all)
	archive, err := image.PauseArchive(pause, o.Arch)
	if err != nil {
		return Manifest{}, err
	}
	root[image.PauseFile] = node{mode: 0o644, content: archive}
	bill, err := sbom(m, packages, programs)
	if err != nil {
		return Manifest{}, err
	}
	inside, err := indent(m)
	if err != nil {
		return Manifest{}, err
	}
	root["usr/share/kip/sbom.spdx.json"] = node{mode: 0o644, content: bill}
	root["usr/share/kip/manifest.json"] = node{mode: 0o644, content: inside}
	return o.write(ctx, m, root, bill, k, files)
}

// read fetches the packages and returns those of their files that an image may need.
func (o Options) read(ctx context.Context, packages debian.Lock) (debian.Files, error) {
	files := debian.Files{}
	for _, p := range packages {
		o.Progress("package " + p.Name + " " + p.Version)
		deb, err := p.Fetch(ctx, o.Mirrors, o.Cache)
		if err != nil {
			return nil, err
		}
		err = files.Read(ctx, deb, func(name string) bool {
			return !strings.HasPrefix(name, "usr/share/") || strings.HasPrefix(name, "usr/share/ca-certificates/") ||
				slices.Contains(configuration, name)
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (o Options) manifest(k *kernel, packages debian.Lock, programs map[string][]byte) Manifest {
	m := Manifest{
		Version:    o.Version,
		Arch:       o.Arch,
		Variant:    o.Variant,
		Kernel:     k.release,
		Kubernetes: version.Kubernetes,
		Arguments:  arguments[o.Arch],
		Packages:   map[string]string{},
		Programs:   map[string]string{},
		Modules:    map[string][]string{},
		Settings:   machine.Settings(),
	}
	for _, p := range packages {
		m.Packages[p.Name] = p.Version
	}
	m.Components = componentsOf(programs)
	for p, b := range programs {
		m.Programs["/"+p] = digest(b)
	}
	for _, u := range o.uses() {
		if u.archs == nil || slices.Contains(u.archs, o.Arch) {
			m.Modules[u.why] = u.names
		}
	}
	return m
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// write writes the root, the raw disk, and that in all forms.
func (o Options) write(ctx context.Context, m Manifest, root tree, bill []byte, k *kernel, files debian.Files) (Manifest, error) {
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return m, err
	}
	tmp, err := os.MkdirTemp(o.Out, ".new-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(tmp)
	o.Progress("writing the root")
	rootFile, err := os.Create(filepath.Join(tmp, "root"))
	if err != nil {
		return m, err
	}
	defer rootFile.Close()
	if err := writeRoot(rootFile, root, tmp); err != nil {
		return m, err
	}
	sum, rootBytes, err := sumOf(rootFile)
	if err != nil {
		return m, err
	}
	// A root and the kernel that was built with it find each other by the content.
	id := gpt.Random([16]byte(sum[:16]))
	m.Root = id.String()

	o.Progress("putting together the EFI program")
	efi, err := o.efi(ctx, m, k, files)
	if err != nil {
		return m, err
	}
	raw, err := os.Create(filepath.Join(tmp, "raw"))
	if err != nil {
		return m, err
	}
	defer raw.Close()
	size, err := o.writeDisk(raw, efi, rootFile, rootBytes, id)
	if err != nil {
		return m, err
	}
	for _, name := range o.Formats {
		o.Progress("writing the form " + name)
		out, err := o.output(tmp, name, raw, size)
		if err != nil {
			return m, fmt.Errorf("write the form %s: %w", name, err)
		}
		m.Outputs = append(m.Outputs, out)
	}
	m.EFI = Output{
		Name:      o.name() + efiSuffix,
		Bytes:     int64(len(efi)),
		UsedBytes: int64(len(efi)),
		SHA256:    fmt.Sprintf("%x", sha256.Sum256(efi)),
	}
	beside, err := indent(m)
	if err != nil {
		return m, err
	}
	for name, b := range map[string][]byte{manifestSuffix: beside, ".spdx.json": bill, efiSuffix: efi} {
		p := filepath.Join(tmp, "file")
		if err := os.WriteFile(p, b, 0o644); err != nil {
			return m, err
		}
		if err := os.Rename(p, filepath.Join(o.Out, o.name()+name)); err != nil {
			return m, err
		}
	}
	return m, nil
}

// name is that of all outputs, before their suffix.
func (o Options) name() string {
	if o.Variant != "" {
		return "kip-cell-" + o.Arch + "-" + o.Variant
	}
	return "kip-cell-" + o.Arch
}

// output writes a raw disk in one form.
func (o Options) output(tmp, format string, raw *os.File, size int64) (Output, error) {
	form := formats[format]
	f := raw
	if form.write != nil {
		var err error
		if f, err = os.Create(filepath.Join(tmp, format)); err != nil {
			return Output{}, err
		}
		defer f.Close()
		if err := form.write(f, raw, size); err != nil {
			return Output{}, err
		}
	}
	sum, bytes, err := sumOf(f)
	if err != nil {
		return Output{}, err
	}
	out := Output{Name: o.name() + form.suffix, Bytes: bytes, SHA256: hex.EncodeToString(sum[:])}
	if err := eachChunk(f, bytes, func(_ int64, b []byte) error { out.UsedBytes += int64(len(b)); return nil }); err != nil {
		return Output{}, err
	}
	to := filepath.Join(o.Out, out.Name)
	if format != "raw" {
		return out, os.Rename(f.Name(), to)
	}
	// The others are made from it, so its own name is given to a second one.
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return Output{}, err
	}
	return out, os.Link(f.Name(), to)
}

// efi is the program that firmware starts: the kernel, its arguments and its first
// file system.
func (o Options) efi(ctx context.Context, m Manifest, k *kernel, files debian.Files) ([]byte, error) {
	early, err := k.choose(ctx, uses, o.Arch, func(u use) bool { return u.early })
	if err != nil {
		return nil, err
	}
	init, err := os.ReadFile(filepath.Join(o.Programs, "itzo-boot"))
	if err != nil {
		return nil, err
	}
	t := tree{"init": {mode: 0o755, content: init}}
	k.install(t, early)
	for p, n := range t {
		if below, ok := strings.CutPrefix(p, "usr/lib/"); ok {
			delete(t, p)
			t["lib/"+below] = n
		}
	}
	for _, dir := range mountPoints {
		t[dir] = node{mode: os.ModeDir | 0o755}
	}
	initrd, err := initramfs(t)
	if err != nil {
		return nil, err
	}
	stub, _, err := files.Open("usr/lib/systemd/boot/efi/" + stubs[o.Arch])
	if err != nil {
		return nil, err
	}
	release := fmt.Sprintf("ID=kip\nNAME=\"Kip cell\"\nVERSION_ID=%q\n", m.Version)
	return unify(stub.Content, []section{
		{".osrel", []byte(release)},
		{".cmdline", []byte(m.Arguments + " " + RootArgument + m.Root)},
		{".uname", []byte(k.release)},
		{".initrd", initrd},
		{".linux", k.vmlinuz},
	})
}

// mountPoints are the folders of the first file system that others are mounted on.
var mountPoints = []string{"dev", "proc", "sys", "root", "state", "new"}

// writeDisk writes the partition table, the ESP and the root, and returns the disk's
// size in bytes.
func (o Options) writeDisk(raw *os.File, efi []byte, root io.Reader, rootBytes int64, id gpt.GUID) (int64, error) {
	sum := sha256.Sum256(efi)
	esp := gpt.Partition{
		Type:  gpt.ESP,
		ID:    gpt.Random([16]byte(sum[:16])),
		First: gpt.Align,
		Last:  gpt.Align + espSectors - 1,
		Name:  "kip-esp",
	}
	first := esp.Last + 1
	sectors := (uint64(rootBytes)/gpt.Sector + gpt.Align) / gpt.Align * gpt.Align
	size := (int64(first+sectors+gpt.Align)*gpt.Sector + o.unit - 1) / o.unit * o.unit
	if err := raw.Truncate(size); err != nil {
		return 0, err
	}
	t := gpt.Table{ID: gpt.Random([16]byte(sum[16:])), Sectors: uint64(size) / gpt.Sector, Partitions: []gpt.Partition{esp, {
		Type:  gpt.Roots[o.Arch],
		ID:    id,
		First: first,
		Last:  first + sectors - 1,
		Name:  "kip-root",
	}}}
	if err := t.Write(raw); err != nil {
		return 0, err
	}
	if err := writeESP(io.NewOffsetWriter(raw, int64(esp.First)*gpt.Sector), espSectors, efiNames[o.Arch], efi); err != nil {
		return 0, err
	}
	_, err := io.Copy(io.NewOffsetWriter(raw, int64(first)*gpt.Sector), root)
	return size, err
}

// sumOf returns the SHA-256 and the size of a file, and goes back to its beginning.
func sumOf(f *os.File) (sum [32]byte, size int64, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return sum, 0, err
	}
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return sum, 0, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return [32]byte(h.Sum(nil)), size, err
}
