package container

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/elotl/kip/image"
	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/image/spdx"
)

// Packages are Debian's packages of the image, as debian.Resolve takes them.
var Packages = []string{"ca-certificates"}

// Programs are the programs of the image, each in a layer of its own. The first one is its entrypoint.
var Programs = []string{"kip", "kipctl"}

// User is who runs the programs. Kip needs no capability and no file of its own in the image.
const User = 65532

// Options say what goes into the images.
type Options struct {
	// Archs are the architectures, one image each: amd64, arm64.
	Archs []string
	// Version is Kip's, and Revision the commit that it was built from, if that is known.
	Version, Revision string
	// Created is when the image says that it was made. Its files have the epoch's time.
	Created time.Time
	// Programs is a folder with a folder for each architecture, such as linux-arm64, which has the Programs.
	Programs string
	// Lock pins Debian's packages. They are fetched from Mirrors, and kept in Cache.
	Lock    debian.Lock
	Mirrors debian.Mirrors
	Cache   string
	// Progress is told each step.
	Progress func(string)
}

// Set is an index and its images.
type Set struct {
	Index     v1.ImageIndex
	Platforms []Platform
}

// Platform is the image for one architecture.
type Platform struct {
	Arch  string
	Image v1.Image
	// Software is the image's list of software, in SPDX's JSON, and Attached the OCI artifact that attaches it to the image.
	Software []byte
	Attached v1.Image
}

// Build makes the images. Equal options make equal digests.
func Build(ctx context.Context, o Options) (*Set, error) {
	if len(o.Archs) == 0 {
		return nil, errors.New("build the images of Kip: no architecture is given: want amd64, arm64 or both")
	}
	s := &Set{Index: mutate.IndexMediaType(empty.Index, types.OCIImageIndex)}
	for _, arch := range slices.Sorted(slices.Values(o.Archs)) {
		p, err := o.platform(ctx, arch)
		if err != nil {
			return nil, fmt.Errorf("build the image of Kip for %s: %w", arch, err)
		}
		s.Platforms = append(s.Platforms, p)
		s.Index = mutate.AppendManifests(s.Index, mutate.IndexAddendum{
			Add:        p.Image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	s.Index = mutate.Annotations(s.Index, o.labels()).(v1.ImageIndex)
	return s, nil
}

func (o Options) platform(ctx context.Context, arch string) (Platform, error) {
	if image.Machines[arch] == 0 {
		return Platform{}, fmt.Errorf("there are images for %s only", strings.Join(slices.Sorted(maps.Keys(image.Machines)), " and "))
	}
	packages, base, err := o.base(ctx, arch)
	if err != nil {
		return Platform{}, err
	}
	var layers []mutate.Addendum
	software := spdx.Contents{
		Document: "kip-" + arch,
		Name:     "kip",
		Version:  o.Version,
		Created:  o.Created,
		Packages: packages,
	}
	add := func(comment string, files []file) error {
		layer, err := layerOf(files)
		if err != nil {
			return err
		}
		layers = append(layers, mutate.Addendum{Layer: layer, History: v1.History{
			Created:   v1.Time{Time: o.Created.UTC()},
			CreatedBy: "kip-image container",
			Comment:   comment,
		}})
		return nil
	}
	if err := add("users and certificate authorities", base); err != nil {
		return Platform{}, err
	}
	for _, name := range Programs {
		o.Progress(name + " for " + arch)
		from := filepath.Join(o.Programs, "linux-"+arch, name)
		program, err := os.ReadFile(from)
		if err != nil {
			return Platform{}, fmt.Errorf("a program of Kip's (make images builds them): %w", err)
		}
		info, err := checkProgram(from, program, arch)
		if err != nil {
			return Platform{}, err
		}
		software.Programs = append(software.Programs, info)
		if err := add(name+" "+o.Version, []file{{path: name, mode: 0o755, content: program}}); err != nil {
			return Platform{}, err
		}
	}
	img, err := o.image(arch, layers)
	if err != nil {
		return Platform{}, err
	}
	p := Platform{Arch: arch, Image: img}
	if p.Software, err = spdx.List(software); err != nil {
		return Platform{}, err
	}
	p.Attached, err = attach(img, p.Software, o.Created)
	return p, err
}

// Who there is. Nobody can log in: there is no program for it.
const (
	passwd = "root:x:0:0:root:/:/sbin/nologin\nkip:x:%d:%[1]d:kip:/:/sbin/nologin\n"
	group  = "root:x:0:\nkip:x:%d:\n"
)

// base returns the files that are no programs, and the packages that they are from.
func (o Options) base(ctx context.Context, arch string) (debian.Lock, []file, error) {
	var packages debian.Lock
	all := debian.Files{}
	for _, name := range Packages {
		p, err := o.Lock.Find(arch, name)
		if err != nil {
			return nil, nil, err
		}
		o.Progress("package " + p.Name + " " + p.Version)
		deb, err := p.Fetch(ctx, o.Mirrors, o.Cache)
		if err != nil {
			return nil, nil, err
		}
		if err := all.Read(ctx, deb, func(string) bool { return true }); err != nil {
			return nil, nil, err
		}
		packages = append(packages, p)
	}
	authorities := all.Authorities()
	if len(authorities) == 0 {
		return nil, nil, errors.New("no package has certificate authorities")
	}
	return packages, []file{
		{path: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil, passwd, User)},
		{path: "etc/group", mode: 0o644, content: fmt.Appendf(nil, group, User)},
		{path: strings.TrimPrefix(image.HostCertificates, "/"), mode: 0o644, content: authorities},
	}, nil
}

// checkProgram refuses what cannot run in an image that has no libraries, or not on this architecture.
func checkProgram(path string, program []byte, arch string) (*debug.BuildInfo, error) {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, fmt.Errorf("%s is no program for Linux: %w", path, err)
	}
	defer f.Close()
	if f.Machine != image.Machines[arch] {
		return nil, fmt.Errorf("%s is a program for %v, and the image is for %s", path, f.Machine, arch)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, fmt.Errorf("%s needs libraries in C, and the image has none: build it with CGO_ENABLED=0", path)
	}
	info := spdx.BuildInfo(program)
	if info == nil {
		return nil, fmt.Errorf("%s does not say what it was built from: build it with Go, and do not remove its build information", path)
	}
	return info, nil
}

// image puts the layers together.
func (o Options) image(arch string, layers []mutate.Addendum) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, layers...)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Created = v1.Time{Time: o.Created.UTC()}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%[1]d", User),
		Entrypoint: []string{"/" + Programs[0]},
		// By it `kubectl exec POD -- kipctl` finds its program.
		Env:        []string{"PATH=/"},
		WorkingDir: "/",
		Labels:     o.labels(),
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, o.labels()).(v1.Image), nil
}

// labels are what the images and their index say of themselves:
// https://github.com/opencontainers/image-spec/blob/main/annotations.md
func (o Options) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	l := map[string]string{
		prefix + "title":         "kip",
		prefix + "description":   "A Virtual Kubelet provider that gives every pod a cloud instance of its own",
		prefix + "url":           "https://github.com/elotl/kip",
		prefix + "source":        "https://github.com/elotl/kip",
		prefix + "documentation": "https://github.com/elotl/kip/tree/main/docs",
		prefix + "licenses":      "Apache-2.0",
		prefix + "version":       o.Version,
		prefix + "created":       o.Created.UTC().Format(time.RFC3339),
	}
	if o.Revision != "" {
		l[prefix+"revision"] = o.Revision
	}
	return l
}
