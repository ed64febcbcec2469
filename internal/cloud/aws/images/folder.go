package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/elotl/kip/internal/bootimages"
)

// InFolder finds the boot image for an architecture, and of a variant, in a folder of make image's or of a release: its raw disk, which a
// release has packed, with what its manifest says of it.
func InFolder(dir, arch, variant string) (Image, error) {
	name := "kip-cell-" + Image{Arch: arch, Variant: variant}.Kind()
	file := filepath.Join(dir, name+".manifest.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return Image{}, fmt.Errorf("read what image there is (make image IMAGE_FORMATS=raw builds one): %w", err)
	}
	i, err := described(text, file, arch, variant)
	if err != nil {
		return i, err
	}
	i.File = filepath.Join(dir, name+".raw")
	_, err = os.Stat(i.File)
	if errors.Is(err, fs.ErrNotExist) {
		i.File = filepath.Join(dir, name+archived)
		_, err = os.Stat(i.File)
	}
	return i, err
}

// InRegistry finds the boot image for an architecture in a registry of container images (package bootimages). Its disk is fetched if it is
// published. The options say who asks, and by what; none for docker's credentials on this machine.
func InRegistry(ctx context.Context, from, arch string, options ...remote.Option) (Image, error) {
	if len(options) == 0 {
		options = []remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	}
	found, err := bootimages.Find(ctx, from, arch, options...)
	if err != nil {
		return Image{}, fmt.Errorf("find the boot image %s for %s: %w", from, arch, err)
	}
	i, err := described(found.Manifest, from, arch, "")
	i.File, i.Packed = from, found.Disk
	return i, err
}

// described is the image of which a manifest tells, without its disk.
func described(text []byte, file, arch, variant string) (Image, error) {
	var m struct {
		Version, Arch, Variant string
		GPUs                   []string
		Outputs                []struct{ Name, SHA256 string }
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return Image{}, fmt.Errorf("read %s: %w", file, err)
	}
	if m.Arch != arch || m.Variant != variant {
		return Image{}, fmt.Errorf("%s is of an image for %q with the variant %q, not for %s with %q", file, m.Arch, m.Variant, arch, variant)
	}
	i := Image{Arch: arch, Version: m.Version, Variant: variant, GPUs: m.GPUs}
	for _, o := range m.Outputs {
		if o.Name == "kip-cell-"+i.Kind()+".raw" {
			i.SHA256 = o.SHA256
			return i, nil
		}
	}
	return Image{}, fmt.Errorf("the image of %s has no form raw: make image IMAGE_FORMATS=raw", file)
}
