//go:build e2e

package pods

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/elotl/kip/dev/registry"
	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/test/harness"
)

// meshImage has test/mesh, and Debian's iptables and nft.
const meshImage = "example.com/mesh:1"

// meshPackages are those of Debian that meshImage is made of.
var meshPackages = []string{"iptables", "nftables", "busybox-static", "libc6", "libxtables12", "libip4tc2", "libip6tc2", "libmnl0",
	"libnftnl11", "libnftables1", "libjansson4", "libgmp10", "libedit2", "libbsd0", "libmd0", "libtinfo6"}

// meshPins are of those that Kip's own images do not have.
//
//go:embed testdata/mesh.lock
var meshPins []byte

// writeMeshImage makes a folder with meshImage, for the cells' registry. Where test/mesh has not been built (`make bin/mesh`) the
// folder is empty, and the tests that want the image fail when they pull it.
func writeMeshImage(ctx context.Context, dir string) error {
	images, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	root, err := harness.Repository()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(filepath.Join(root, "bin", "mesh"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	files, err := meshFiles(ctx, filepath.Join(root, ".kip", "debs"))
	if err != nil {
		return err
	}
	files["usr/bin/mesh"] = debian.File{Mode: 0o755, Content: program}
	image, err := imageOf(files)
	if err != nil {
		return err
	}
	return images.AppendImage(image, layout.WithAnnotations(map[string]string{registry.RefName: meshImage}))
}

// meshFiles are what the image has of Debian's packages: the pinned ones, or where the mirror has them no more the newest.
func meshFiles(ctx context.Context, cache string) (debian.Files, error) {
	ours, err := debian.Pinned()
	if err != nil {
		return nil, err
	}
	more, err := debian.ParseLock(meshPins)
	if err != nil {
		return nil, err
	}
	files, err := readPackages(ctx, append(ours, more...), cache)
	if !errors.Is(err, debian.ErrGone) {
		return files, err
	}
	newest, err := debian.Resolve(ctx, debian.DefaultMirrors(), "/usr/share/keyrings/debian-archive-keyring.gpg", meshPackages, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	return readPackages(ctx, newest, cache)
}

func readPackages(ctx context.Context, lock debian.Lock, cache string) (debian.Files, error) {
	files := debian.Files{}
	for _, name := range meshPackages {
		p, err := lock.Find(runtime.GOARCH, name)
		if err != nil {
			return nil, err
		}
		deb, err := p.Fetch(ctx, debian.DefaultMirrors(), cache)
		if err != nil {
			return nil, err
		}
		if err := files.Read(ctx, deb, func(name string) bool {
			return strings.HasPrefix(name, "usr/sbin/") || name == "usr/bin/busybox" || strings.Contains(path.Base(name), ".so")
		}); err != nil {
			return nil, err
		}
	}
	for _, applet := range []string{"sh", "cat", "sleep", "ls"} {
		files["usr/bin/"+applet] = debian.File{Mode: fs.ModeSymlink | 0o777, Link: "busybox"}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		files[dir] = debian.File{Mode: fs.ModeSymlink | 0o777, Link: "usr/" + dir}
	}
	return files, nil
}

// imageOf is an image with these files.
func imageOf(files debian.Files) (v1.Image, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, dir := range []string{"usr", "etc", "run", "tmp", "var", "proc", "sys", "dev"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(f.Mode.Perm()), Size: int64(len(f.Content))}
		if f.Mode.Type() == fs.ModeSymlink {
			h = &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: f.Link, Mode: 0o777}
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(f.Content); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	if err != nil {
		return nil, fmt.Errorf("make the layer of %s: %w", meshImage, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.Entrypoint = "linux", runtime.GOARCH, []string{"/usr/bin/mesh"}
	config.Config.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	return mutate.ConfigFile(image, config)
}
