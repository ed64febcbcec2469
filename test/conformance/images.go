package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/elotl/kip/dev/registry"
)

// fingerprint names what something is made of.
func fingerprint(of ...any) string {
	data, err := json.Marshal(of)
	if err != nil {
		panic(err) // strings and lists of them
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}

// file is one of an image, beside its tree of packages.
type file struct {
	path string
	mode int64
	data string // the text
	from string // or the path of a file of this machine
	link string // or where it points to
	dir  bool
}

// image is a stand-in for one that the specs name.
type image struct {
	names []string
	base  *tree // below the files; nil for nothing
	files []file
	user  string
	entry []string
	cmd   []string
	env   []string
}

const path0 = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// e2e is where upstream has the images of its tests.
const e2e = "registry.k8s.io/e2e-test-images/"

// users and groups of upstream's agnhost image, of which a spec asks.
const (
	users = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\nwww-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\nuser-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"
	groups = "root:x:0:\ndaemon:x:1:\ntty:x:5:\nwww-data:x:33:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
)

// nginxConfig serves on port 80 and logs to the container's log.
const nginxConfig = `daemon off;
events {}
http {
	access_log /dev/stdout;
	error_log /dev/stderr;
	include /etc/nginx/mime.types;
	server { listen 80; root /var/www/html; index index.nginx-debian.html; }
}
`

// images are those that specs name and that can be pulled. tools
// is the folder of upstream's programs, bin that of ours, source that of the
// module k8s.io/kubernetes.
func images(tools, bin, source string) []image {
	identities := []file{{path: "etc/passwd", mode: 0o644, data: users}, {path: "etc/group", mode: 0o644, data: groups}}
	images := filepath.Join(source, "test", "images")
	agnhost := slices.Concat(identities, []file{
		{path: "agnhost", mode: 0o755, from: filepath.Join(tools, "agnhost")},
		{path: "agnhost-2", link: "agnhost"},
		{path: "uploads", mode: 0o755, dir: true},
		{path: "localhost.crt", mode: 0o644, from: filepath.Join(images, "agnhost", "porter", "localhost.crt")},
		{path: "localhost.key", mode: 0o644, from: filepath.Join(images, "agnhost", "porter", "localhost.key")},
	})
	pets := func(name string) image {
		html := filepath.Join(images, name, "html")
		return image{
			names: []string{e2e + name + ":1.8"},
			base:  &full,
			entry: []string{"/agnhost"},
			cmd:   []string{"test-webserver"},
			files: slices.Concat(agnhost, []file{
				{path: name + ".jpg", mode: 0o644, from: filepath.Join(html, name+".jpg")},
				{path: "data.json", mode: 0o644, from: filepath.Join(html, "data.json")},
				// A spec looks into the image for the distribution that upstream's has.
				{path: "etc/os-release", mode: 0o644, data: "NAME=\"Alpine Linux\"\nPRETTY_NAME=\"Stand-in for an image of Alpine Linux\"\n"},
			}),
		}
	}
	return []image{
		{names: []string{e2e + "agnhost:2.63.0", e2e + "agnhost:2.55"}, base: &full, files: agnhost, entry: []string{"/agnhost"},
			cmd: []string{"pause"}},
		pets("kitten"), pets("nautilus"),
		{names: []string{e2e + "busybox:1.37.0-1"}, base: &busybox, files: slices.Concat(identities,
			[]file{{path: "tmp", mode: 0o1777, dir: true}}), cmd: []string{"sh"}},
		{names: []string{e2e + "nginx:1.15-4", e2e + "nginx:1.27-0"}, base: &full, files: slices.Concat(identities, []file{
			{path: "etc/nginx/nginx.conf", mode: 0o644, data: nginxConfig},
		}), cmd: []string{"nginx"}},
		{names: []string{e2e + "nonroot:1.5"}, base: &full, files: agnhost, user: "1234", entry: []string{"/agnhost"}, cmd: []string{"pause"}},
		{names: []string{e2e + "nonewprivs:1.4"}, base: &full, files: slices.Concat(identities, []file{
			{path: "usr/local/bin/nnp", mode: 0o6755, from: filepath.Join(tools, "nnp")},
		}), cmd: []string{"nnp"}},
		{names: []string{e2e + "glibc-dns-testing:2.0.0", e2e + "ipc-utils:1.4"}, base: &full, files: identities, cmd: []string{"bash"}},
		{names: []string{e2e + "regression-issue-74839:1.4"}, files: []file{
			{path: "regression-issue-74839", mode: 0o755, from: filepath.Join(tools, "regression-issue-74839")},
		}, entry: []string{"/regression-issue-74839"}},
		{names: []string{e2e + "sample-apiserver:1.29.2"}, files: []file{
			{path: "sample-apiserver", mode: 0o755, from: filepath.Join(tools, "sample-apiserver")}, {path: "tmp", mode: 0o1777, dir: true},
		}, entry: []string{"/sample-apiserver"}},
		{names: []string{"registry.k8s.io/etcd:3.6.8-0"}, files: []file{
			{path: "usr/local/bin/etcd", mode: 0o755, from: filepath.Join(tools, "etcd")}, {path: "tmp", mode: 0o1777, dir: true},
		}, cmd: []string{"etcd"}},
		{names: []string{"registry.k8s.io/pause:3.10.2"}, files: []file{
			{path: "pause", mode: 0o755, from: filepath.Join(bin, "pause")},
		}, user: "65535:65535", entry: []string{"/pause"}},
	}
}

// stamp names what the images are made of, by the programs' sizes and times.
func stamp(all []image, trees map[*tree]string) (string, error) {
	of := []any{"layers that are not compressed"}
	note := func(p string) error {
		info, err := os.Stat(p)
		if err == nil {
			of = append(of, p, info.Size(), info.ModTime().UnixNano())
		}
		return err
	}
	for _, i := range all {
		of = append(of, i.names, i.user, i.entry, i.cmd, i.env)
		if i.base != nil {
			if err := note(trees[i.base]); err != nil {
				return "", err
			}
		}
		for _, f := range i.files {
			of = append(of, f.path, f.mode, f.data, f.link)
			if f.from != "" {
				if err := note(f.from); err != nil {
					return "", err
				}
			}
		}
	}
	return fingerprint(of...), nil
}

// writeImages writes all images into an OCI layout under dir, unless they are there,
// and returns its path.
func writeImages(ctx context.Context, all []image, dir string) (_ string, err error) {
	trees := map[*tree]string{}
	for _, i := range all {
		if i.base != nil && trees[i.base] == "" {
			if trees[i.base], err = i.base.make(ctx, dir); err != nil {
				return "", err
			}
		}
	}
	made, err := stamp(all, trees)
	if err != nil {
		return "", fmt.Errorf("find what images are made of: %w", err)
	}
	out := filepath.Join(dir, "images-"+made)
	if _, err := os.Stat(out); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return out, err
	}
	old, err := filepath.Glob(filepath.Join(dir, "images-*"))
	if err != nil {
		return "", err
	}
	for _, o := range old {
		if err := os.RemoveAll(o); err != nil {
			return "", err
		}
	}
	path, err := layout.Write(out+".new", empty.Index)
	if err != nil {
		return "", fmt.Errorf("make a folder for the images: %w", err)
	}
	bases := map[*tree]v1.Layer{}
	for t, file := range trees {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("make a layer: %w", err)
		}
		bases[t] = layer(data)
	}
	for _, i := range all {
		built, err := i.build(bases)
		if err != nil {
			return "", fmt.Errorf("make image %s: %w", i.names[0], err)
		}
		for _, n := range i.names {
			if err := path.AppendImage(built, layout.WithAnnotations(map[string]string{registry.RefName: n})); err != nil {
				return "", fmt.Errorf("write image %s: %w", n, err)
			}
		}
	}
	return out, os.Rename(out+".new", out)
}

// layer is one that is not compressed: each cell pulls the images that its pod
// names over this machine's memory, and a small cell would unpack for seconds.
func layer(archive []byte) v1.Layer { return static.NewLayer(archive, types.DockerUncompressedLayer) }

func (i image) build(bases map[*tree]v1.Layer) (v1.Image, error) {
	archive, err := archiveOf(i.files)
	if err != nil {
		return nil, err
	}
	var layers []v1.Layer
	if i.base != nil {
		layers = append(layers, bases[i.base])
	}
	built, err := mutate.AppendLayers(empty.Image, append(layers, layer(archive))...)
	if err != nil {
		return nil, err
	}
	config, err := built.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = append([]string{path0}, i.env...)
	config.Config.User, config.Config.Entrypoint, config.Config.Cmd = i.user, i.entry, i.cmd
	return mutate.ConfigFile(built, config)
}

// archiveOf is a layer with the files and the folders that they are in.
func archiveOf(files []file) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{".": true}
	for _, f := range files {
		var above []string
		for d := path.Dir(f.path); !made[d]; d = path.Dir(d) {
			above, made[d] = append(above, d), true
		}
		for _, d := range slices.Backward(above) {
			if err := w.WriteHeader(&tar.Header{
				Typeflag: tar.TypeDir,
				Name:     d + "/",
				Mode:     0o755,
				Format:   tar.FormatPAX,
			}); err != nil {
				return nil, err
			}
		}
		data := []byte(f.data)
		if f.from != "" {
			var err error
			if data, err = os.ReadFile(f.from); err != nil {
				return nil, err
			}
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg,
			Name:     f.path,
			Mode:     f.mode,
			Size:     int64(len(data)),
			Format:   tar.FormatPAX,
		}
		switch {
		case f.dir:
			h.Typeflag, h.Name, made[f.path] = tar.TypeDir, f.path+"/", true
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
