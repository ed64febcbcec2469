package bootimages

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Published is the registry of Kip's own releases.
const Published = "ghcr.io/elotl"

const (
	// repository is what the boot images are called in a registry.
	repository = "kip-cell"
	// title is the annotation with the name of a file. Source: OCI image specification, "Pre-defined annotation keys".
	title = "org.opencontainers.image.title"

	configType   = types.MediaType("application/vnd.elotl.kip.boot-image.v1+json")
	manifestType = types.MediaType("application/vnd.elotl.kip.boot-image.manifest.v1+json")
	diskType     = types.MediaType("application/vnd.elotl.kip.boot-image.disk.v1.tar+gzip")
)

// Name returns the name of the boot images in a registry such as ghcr.io/elotl, which has no scheme.
func Name(registry, tag string) string { return registry + "/" + repository + ":" + tag }

// ManifestFile is the file of what is said of a boot image, as make image and a release call it.
func ManifestFile(arch string) string { return "kip-cell-" + arch + ".manifest.json" }

// DiskFile is the file of its raw disk, in an archive.
func DiskFile(arch string) string { return "kip-cell-" + arch + ".tar.gz" }

// In returns the architectures, of some, of which a folder has a boot image of a version. left says why others are left out.
func In(folder string, archs []string, version string) (found, left []string, err error) {
	for _, arch := range archs {
		text, err := os.ReadFile(filepath.Join(folder, ManifestFile(arch)))
		if errors.Is(err, fs.ErrNotExist) {
			left = append(left, fmt.Sprintf("%s has no boot image for %s: run make image IMAGE_ARCH=%s", folder, arch, arch))
			continue
		}
		var m struct{ Version string }
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read what boot image there is: %w", err)
		}
		_, err = os.Stat(filepath.Join(folder, DiskFile(arch)))
		switch {
		case m.Version != version:
			left = append(left, fmt.Sprintf("the boot image in %s for %s is of %s, not of %s: run make image IMAGE_ARCH=%s", folder, arch, m.Version,
				version, arch))
		case err != nil:
			left = append(left, fmt.Sprintf("%s has no %s: run make image IMAGE_ARCH=%s IMAGE_FORMATS=tar.gz,raw", folder, DiskFile(arch), arch))
		default:
			found = append(found, arch)
		}
	}
	return found, left, nil
}

// Pack returns an index with the boot images in a folder, one for each architecture.
func Pack(folder string, archs []string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range archs {
		img, err := pack(folder, arch)
		if err != nil {
			return nil, fmt.Errorf("pack the boot image for %s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}

func pack(folder, arch string) (v1.Image, error) {
	manifest, err := os.ReadFile(filepath.Join(folder, ManifestFile(arch)))
	if err != nil {
		return nil, err
	}
	disk, err := diskAt(filepath.Join(folder, DiskFile(arch)))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), configType)
	return mutate.Append(base,
		mutate.Addendum{Layer: static.NewLayer(manifest, manifestType), Annotations: map[string]string{title: ManifestFile(arch)}},
		mutate.Addendum{Layer: disk, Annotations: map[string]string{title: DiskFile(arch)}})
}

// disk is a file that is a layer as it is.
type disk struct {
	path   string
	size   int64
	digest v1.Hash
}

var _ v1.Layer = disk{}

func diskAt(path string) (d disk, err error) {
	f, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	d.path = path
	d.digest, d.size, err = v1.SHA256(f)
	return d, err
}

// Digest implements v1.Layer.
func (d disk) Digest() (v1.Hash, error) { return d.digest, nil }

// DiffID implements v1.Layer. No container runtime unpacks it.
func (d disk) DiffID() (v1.Hash, error) { return d.digest, nil }

// Compressed implements v1.Layer.
func (d disk) Compressed() (io.ReadCloser, error) { return os.Open(d.path) }

// Uncompressed implements v1.Layer.
func (d disk) Uncompressed() (io.ReadCloser, error) { return os.Open(d.path) }

// Size implements v1.Layer.
func (d disk) Size() (int64, error) { return d.size, nil }

// MediaType implements v1.Layer.
func (d disk) MediaType() (types.MediaType, error) { return diskType, nil }
