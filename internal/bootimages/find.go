package bootimages

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// maxManifest bounds what is said of a boot image, in bytes: it lists some hundred modules.
const maxManifest = 4 << 20

// Found is a boot image in a registry.
type Found struct {
	// Manifest is what is said of it: the content of its ManifestFile.
	Manifest []byte

	disk    name.Digest
	size    int64
	options []remote.Option
}

// Find finds the boot image for an architecture in a registry, by the name of an index that Pack has made. It does not read the disk. The
// options say who asks, and by what.
func Find(ctx context.Context, from, arch string, options ...remote.Option) (*Found, error) {
	ref, err := name.ParseReference(from)
	if err != nil {
		return nil, err
	}
	with := func(ctx context.Context) []remote.Option {
		return append(slices.Clone(options), remote.WithContext(ctx), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
	}
	img, err := remote.Image(ref, with(ctx)...)
	if err != nil {
		return nil, err
	}
	about, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	file := func(called string) (v1.Descriptor, error) {
		n := slices.IndexFunc(about.Layers, func(d v1.Descriptor) bool { return d.Annotations[title] == called })
		if n < 0 {
			return v1.Descriptor{}, fmt.Errorf("%s has no file %s: it is no boot image of Kip's", from, called)
		}
		return about.Layers[n], nil
	}
	manifest, err := file(ManifestFile(arch))
	if err != nil {
		return nil, err
	}
	packed, err := file(DiskFile(arch))
	if err != nil {
		return nil, err
	}
	found := &Found{disk: ref.Context().Digest(packed.Digest.String()), size: packed.Size, options: options}
	found.Manifest, err = read(ref.Context().Digest(manifest.Digest.String()), manifest.Size, with(ctx))
	return found, err
}

func read(at name.Digest, size int64, options []remote.Option) ([]byte, error) {
	if size > maxManifest {
		return nil, fmt.Errorf("%s has %d bytes: want at most %d", at, size, maxManifest)
	}
	layer, err := remote.Layer(at, options...)
	if err != nil {
		return nil, err
	}
	content, err := layer.Compressed() // which compares the digest
	if err != nil {
		return nil, err
	}
	defer content.Close()
	// The digest is compared where the content ends: what is longer has not been compared.
	manifest, err := io.ReadAll(io.LimitReader(content, maxManifest+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(manifest)) != size:
		return nil, fmt.Errorf("the registry sent %d bytes or more of %s: want %d, as the image says", len(manifest), at, size)
	}
	return manifest, nil
}

// Disk opens the archive with the raw disk, and returns its size.
func (f *Found) Disk(ctx context.Context) (packed io.ReadCloser, size int64, err error) {
	layer, err := remote.Layer(f.disk, append(slices.Clone(f.options), remote.WithContext(ctx))...)
	if err != nil {
		return nil, 0, err
	}
	packed, err = layer.Compressed()
	return packed, f.size, err
}
