package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/image/nvidia"
)

// checkVariant refuses a variant that there is not, or not for the architecture.
func (o Options) checkVariant() error {
	switch {
	case o.Variant == "", o.Variant == nvidia.Variant && o.Arch == nvidia.Arch:
		return nil
	case o.Variant == nvidia.Variant:
		return fmt.Errorf("variant %q: there is one for %s only", o.Variant, nvidia.Arch)
	}
	return fmt.Errorf("variant %q: want %s, or none", o.Variant, nvidia.Variant)
}

// uses are those of the variant.
func (o Options) uses() []use {
	if o.Variant == "" {
		return uses
	}
	return append(slices.Clip(uses), use{why: "GPUs of NVIDIA", names: nvidia.Modules})
}

// driver is what an image of a variant has besides.
type driver struct {
	packages debian.Lock
	files    debian.Files
	gpus     []string
}

// driver reads the variant's packages, and adds its modules to the kernel's.
func (o Options) driver(ctx context.Context, k *kernel) (d driver, err error) {
	if o.Variant == "" {
		return driver{}, nil
	}
	d.gpus = nvidia.GPUs
	d.packages = slices.DeleteFunc(slices.Clone(o.VariantLock), func(p debian.Package) bool { return !nvidia.InImage(p) })
	all, err := o.read(ctx, d.packages)
	if err != nil {
		return d, err
	}
	version, files, err := nvidia.Files(all)
	if err != nil {
		return d, err
	}
	d.files = files
	build := o.modules
	if build == nil {
		build = nvidia.Builder{
			Release:  k.release,
			Lock:     o.VariantLock,
			Mirrors:  o.Mirrors,
			Cache:    o.Cache,
			Check:    func(modules map[string][]byte) error { return k.add(ctx, modules, version) },
			Progress: o.Progress,
		}.Modules
	}
	modules, err := build(ctx)
	if err != nil {
		return d, err
	}
	return d, k.add(ctx, modules, version)
}

// ofKernel is a module of each kernel, by which others are compared with it.
const ofKernel = "overlay"

// add adds modules of a driver's version. The kernel would load none that was built for another one: their magic differs.
func (k *kernel) add(ctx context.Context, files map[string][]byte, version string) error {
	like, err := k.open(ctx, ofKernel)
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range slices.Sorted(maps.Keys(files)) {
		name := moduleName(file)
		k.modules[name] = module{file: "updates/" + file, packed: files[file]}
		m, err := k.open(ctx, name)
		switch {
		case err != nil:
			errs = append(errs, err)
		case m.magic != like.magic:
			errs = append(errs, fmt.Errorf("the module %s is for the kernel %q, and the image has %q", name, m.magic, like.magic))
		case m.version != version:
			errs = append(errs, fmt.Errorf("the module %s has version %s, and the driver's libraries are of %s", name, m.version, version))
		}
	}
	return errors.Join(errs...)
}

// addTo adds the driver's files to a root, and what its libraries and programs need.
func (d driver) addTo(t tree, arch string, from debian.Files) error {
	for p, f := range d.files {
		switch {
		case f.Mode.Type() == fs.ModeSymlink:
			t[p] = node{mode: fs.ModeSymlink | 0o777, link: f.Link}
		case strings.HasPrefix(p, "usr/lib/firmware/"):
			t[p] = node{mode: 0o644, content: f.Content}
		default:
			t[p] = node{mode: 0o755, content: f.Content}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(d.files)) {
		if n := t[p]; n.mode == 0o755 {
			if err := t.addLibraries(p, n.content, arch, from); err != nil {
				return err
			}
		}
	}
	return nil
}
