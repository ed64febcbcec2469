package container

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"go.uber.org/goleak"

	"github.com/elotl/kip/image"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEqualInputsMakeEqualImages(t *testing.T) {
	a := world(t)
	tag, err := Name("registry.example/team", a.Version)
	if err != nil {
		t.Fatal(err)
	}
	first, second := t.TempDir(), t.TempDir()
	if _, err := build(t, a).Write(first, tag); err != nil {
		t.Fatal(err)
	}
	// Of another folder and another cache, over images that are there, with other times and modes on all programs.
	b := a
	b.Cache, b.Programs = t.TempDir(), t.TempDir()
	b.Archs = []string{"arm64", "amd64"}
	if err := os.CopyFS(b.Programs, os.DirFS(a.Programs)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(b.Programs, "linux-amd64", "kip"), time.Now(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(b.Programs, "linux-amd64", "kip"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(second, "kip", "older"), []byte("an older layout"))
	if _, err := build(t, b).Write(second, tag); err != nil {
		t.Fatal(err)
	}
	all := func(dir string) map[string]string {
		files := map[string]string{}
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := os.ReadFile(p)
			files[strings.TrimPrefix(p, dir)] = string(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	one, other := all(first), all(second)
	if len(one) < 10 || !maps.Equal(one, other) {
		t.Errorf("the files are %q and %q, or differ in content", slices.Sorted(maps.Keys(one)), slices.Sorted(maps.Keys(other)))
	}
	for _, name := range []string{"/kip/index.json", "/kip/oci-layout", "/kip-amd64.tar", "/kip-arm64.spdx.json"} {
		if one[name] == "" {
			t.Errorf("there is no %s", name)
		}
	}
}

func TestALayerThatDidNotChangeIsTheSameInTheNextRelease(t *testing.T) {
	a := world(t)
	b := a
	b.Version, b.Revision, b.Created = "v1.2.4", "", a.Created.Add(time.Hour)
	b.Programs = t.TempDir()
	if err := os.CopyFS(b.Programs, os.DirFS(a.Programs)); err != nil {
		t.Fatal(err)
	}
	// Another kip, and the same authorities and kipctl.
	write(t, filepath.Join(b.Programs, "linux-arm64", "kip"), append(compile(t, "small", "arm64"), '!'))
	first, second := build(t, a), build(t, b)
	one, err := imageOf(t, first.Index, "arm64").Layers()
	if err != nil {
		t.Fatal(err)
	}
	other, err := imageOf(t, second.Index, "arm64").Layers()
	if err != nil || len(one) != 3 || len(other) != 3 {
		t.Fatalf("%d and %d layers (%v), want 3: the base, kip and kipctl", len(one), len(other), err)
	}
	for i, same := range []bool{true, false, true} {
		if digestOf(t, one[i]) == digestOf(t, other[i]) != same {
			t.Errorf("layer %d is the same: %v, want %v", i, !same, same)
		}
	}
	if digestOf(t, first.Index) == digestOf(t, second.Index) {
		t.Error("images of another version have the same digest")
	}
}

func digestOf(t *testing.T, of interface{ Digest() (v1.Hash, error) }) v1.Hash {
	t.Helper()
	d, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAnImageHasWhatKipNeedsAndNothingElse reads what was written.
func TestAnImageHasWhatKipNeedsAndNothingElse(t *testing.T) {
	o := world(t)
	tag, err := Name("registry.example/team", "v1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	written, err := build(t, o).Write(dir, tag)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := layout.ImageIndexFromPath(written[0])
	if err != nil {
		t.Fatal(err)
	}
	m, err := whole.IndexManifest()
	if err != nil || len(m.Manifests) != 3 || m.Manifests[0].Annotations[refName] != "registry.example/team/kip:v1" {
		t.Fatalf("the layout has %+v (%v), want the index by its name and two lists of software", m, err)
	}
	index, err := whole.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	for _, arch := range o.Archs {
		img := imageOf(t, index, arch)
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c := config.Config
		if config.OS != "linux" || config.Architecture != arch || !config.Created.Equal(o.Created) || c.User != "65532:65532" ||
			!slices.Equal(c.Entrypoint, []string{"/kip"}) || c.Cmd != nil || c.Volumes != nil || c.ExposedPorts != nil {
			t.Errorf("the image for %s has the configuration %+v", arch, config)
		}
		for label, want := range map[string]string{
			"version": o.Version, "revision": o.Revision, "created": "2026-11-29T12:00:00Z", "licenses": "Apache-2.0",
			"source": "https://github.com/elotl/kip", "title": "kip",
		} {
			if got := c.Labels["org.opencontainers.image."+label]; got != want {
				t.Errorf("the label %s is %q, want %q", label, got, want)
			}
		}
		kip := "small"
		if arch == runtime.GOARCH {
			kip = "inside"
		}
		want := map[string]string{
			"etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nkip:x:65532:65532:kip:/:/sbin/nologin\n",
			"etc/group":  "root:x:0:\nkip:x:65532:\n",
			"kip":        string(compile(t, kip, arch)), "kipctl": string(compile(t, "small", arch)),
			"etc/ssl/certs/ca-certificates.crt": authorities,
			"etc":                               "", "etc/ssl": "", "etc/ssl/certs": "",
		}
		got := entries(t, img)
		for p, e := range got {
			p = strings.TrimSuffix(p, "/")
			content, wanted := want[p]
			if !wanted || content != string(e.content) {
				t.Errorf("the image for %s has a %s with %d bytes: %.60q", arch, p, len(e.content), e.content)
			}
			mode := int64(0o644)
			if e.header.Typeflag == tar.TypeDir || strings.HasPrefix(p, "kip") {
				mode = 0o755
			}
			if h := e.header; h.Mode != mode || h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(0, 0)) {
				t.Errorf("/%s has mode %o, owner %d:%d and time %v; want %o, 0:0 and the epoch", p, h.Mode, h.Uid, h.Gid, h.ModTime, mode)
			}
			delete(want, p)
		}
		for p := range want {
			t.Errorf("the image for %s lacks /%s", arch, p)
		}
	}
}

func TestTheListOfSoftwareIsAttachedToItsImage(t *testing.T) {
	o := world(t)
	s := build(t, o)
	for _, p := range s.Platforms {
		m, err := p.Attached.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject == nil || m.Subject.Digest != digestOf(t, p.Image) || m.ArtifactType != "application/spdx+json" || len(m.Layers) != 1 {
			t.Fatalf("for %s it is %+v", p.Arch, m)
		}
		layers, err := p.Attached.Layers()
		if err != nil {
			t.Fatal(err)
		}
		r, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil || r.Close() != nil || !bytes.Equal(content, p.Software) {
			t.Fatalf("for %s its content is another list (%v): %.80q", p.Arch, err, content)
		}
		var list struct {
			Packages []struct {
				Name, VersionInfo string
				ExternalRefs      []struct{ ReferenceLocator string }
			}
		}
		if err := json.Unmarshal(content, &list); err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, p := range list.Packages {
			found[p.Name] = p.VersionInfo
			for _, r := range p.ExternalRefs {
				found[r.ReferenceLocator] = p.VersionInfo
			}
		}
		for name, want := range map[string]string{
			"kip": o.Version, "github.com/elotl/kip": o.Version, "go": runtime.Version(), "ca-certificates": "1",
			"pkg:deb/debian/ca-certificates@1?arch=" + p.Arch + "&distro=trixie": "1",
		} {
			if found[name] != want {
				t.Errorf("for %s it has %s in version %q, want %q", p.Arch, name, found[name], want)
			}
		}
		if found["k8s.io/utils"] == "" {
			t.Errorf("for %s it lacks a module of kipctl's: %q", p.Arch, found)
		}
	}
}

// TestTheEntrypointRunsInTheImage runs a program as a container without privileges does: alone with the image's files, as its user,
// in its environment.
func TestTheEntrypointRunsInTheImage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may change the root of a process")
	}
	o := world(t)
	authority := httptest.NewTLSServer(nil)
	defer authority.Close()
	o.setAuthorities(t, map[string]string{
		"a.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw})),
	})
	img := imageOf(t, build(t, o).Index, runtime.GOARCH)
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	files := entries(t, img)
	for _, p := range slices.Sorted(maps.Keys(files)) {
		e := files[p]
		to := filepath.Join(root, p)
		if e.header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(to, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, to, e.content)
		if err := os.Chmod(to, e.header.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(config.Config.Entrypoint[0], "--flag")
	cmd.Env, cmd.Dir = config.Config.Env, config.Config.WorkingDir
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: User, Gid: User}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var found map[string]any
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := map[string]any{"uid": float64(User), "user": "kip", "roots": true, "zones": true, "kipctl": "/kipctl", "root": false}
	for key, value := range want {
		if found[key] != value {
			t.Errorf("%s is %v, want %v", key, found[key], value)
		}
	}
}

func TestWhatCannotRunInAnImageIsRefused(t *testing.T) {
	// The least that is a program with a loader.
	dynamic := func(arch string) []byte {
		var b bytes.Buffer
		for _, part := range []any{
			elf.Header64{
				Ident:   [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
				Type:    uint16(elf.ET_EXEC),
				Machine: uint16(image.Machines[arch]),
				Version: uint32(elf.EV_CURRENT),
				Phoff:   64, Ehsize: 64, Phentsize: 56, Phnum: 1,
			},
			elf.Prog64{Type: uint32(elf.PT_INTERP)},
		} {
			if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	for name, tc := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no architecture":      {func(o *Options) { o.Archs = nil }, "no architecture is given: want amd64, arm64 or both"},
		"another architecture": {func(o *Options) { o.Archs = []string{"mips"} }, "for mips: there are images for amd64 and arm64 only"},
		"no program": {func(o *Options) { os.Remove(filepath.Join(o.Programs, "linux-arm64", "kipctl")) },
			"for arm64: a program of Kip's (make images builds them): open"},
		"a script": {func(o *Options) { write(t, filepath.Join(o.Programs, "linux-arm64", "kip"), []byte("#!/bin/sh\n")) }, "arm64/kip is no program for Linux: "},
		"a program of the other architecture": {
			func(o *Options) {
				write(t, filepath.Join(o.Programs, "linux-arm64", "kip"), compile(t, "small", "amd64"))
			},
			"arm64/kip is a program for EM_X86_64, and the image is for arm64",
		},
		"a program with libraries": {
			func(o *Options) { write(t, filepath.Join(o.Programs, "linux-amd64", "kip"), dynamic("amd64")) },
			"amd64/kip needs libraries in C, and the image has none: build it with CGO_ENABLED=0",
		},
		"no authorities": {func(o *Options) { o.setAuthorities(t, nil) }, "no package has certificate authorities"},
		"no lock":        {func(o *Options) { o.Lock = nil }, "the lock has no package ca-certificates for amd64"},
	} {
		o := world(t)
		tc.change(&o)
		if s, err := Build(t.Context(), o); err == nil || s != nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
