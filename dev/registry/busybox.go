package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// directories of the busybox image, with their modes.
var directories = []struct {
	path string
	mode int64
}{{"bin", 0o755}, {"dev", 0o755}, {"etc", 0o755}, {"proc", 0o555}, {"root", 0o700}, {"sys", 0o555}, {"tmp", 0o1777}, {"var", 0o755},
	{"home", 0o755}}

// files of the busybox image beside busybox itself.
var files = []struct{ path, text string }{
	{"etc/group", "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n"},
	{"etc/nsswitch.conf", "hosts: files dns\n"},
	{"etc/passwd", "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n"},
}

// Busybox makes an image like the well-known one from a static busybox of this
// machine. Equal programs make equal images.
func Busybox(ctx context.Context, program string) (v1.Image, error) {
	out, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s for its applets: %w", program, err)
	}
	applets := strings.Fields(string(out))
	if !slices.Contains(applets, "sh") {
		return nil, fmt.Errorf("%s has no shell: want Debian's package busybox-static or its like", program)
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read busybox: %w", err)
	}
	archive, err := rootArchive(binary, applets)
	if err != nil {
		return nil, fmt.Errorf("make the busybox image: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	if err != nil {
		return nil, fmt.Errorf("make the busybox image: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("make the busybox image: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make the busybox image: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	config.Config.Cmd = []string{"sh"}
	return mutate.ConfigFile(image, config)
}

// rootArchive is the image's one layer: busybox, a link an applet, and the few
// files that programs look for.
func rootArchive(binary []byte, applets []string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(h *tar.Header, data []byte) error {
		h.Size = int64(len(data))
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, d := range directories {
		if err := add(&tar.Header{Typeflag: tar.TypeDir, Name: d.path + "/", Mode: d.mode}, nil); err != nil {
			return nil, err
		}
	}
	if err := add(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, binary); err != nil {
		return nil, err
	}
	slices.Sort(applets)
	for _, a := range applets {
		if a == "busybox" {
			continue
		}
		if err := add(&tar.Header{
			Typeflag: tar.TypeLink,
			Name:     path.Join("bin", path.Base(a)),
			Linkname: "bin/busybox",
			Mode:     0o755,
		},
			nil); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		if err := add(&tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: 0o644}, []byte(f.text)); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
