package container

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/elotl/kip/image/debian"
)

// authorities are two, as ca-certificates has them.
const authorities = "the first\nthe second\n"

// compiled builds a program of testdata for an architecture, once.
var compiled = struct {
	sync.Mutex
	programs map[[2]string][]byte
}{programs: map[[2]string][]byte{}}

func compile(t *testing.T, program, arch string) []byte {
	t.Helper()
	compiled.Lock()
	defer compiled.Unlock()
	if b := compiled.programs[[2]string{program, arch}]; b != nil {
		return b
	}
	to := filepath.Join(t.TempDir(), program)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, "./testdata/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s for %s: %v\n%s", program, arch, err, out)
	}
	b, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	compiled.programs[[2]string{program, arch}] = b
	return b
}

// archive is the package ca-certificates with these authorities, by their names.
func archive(t *testing.T, authorities map[string]string) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"DEBIAN/control":          "Package: ca-certificates\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n",
		"usr/share/doc/copyright": "not in an image",
	}
	for name, text := range authorities {
		files["usr/share/ca-certificates/mozilla/"+name] = text
	}
	for p, text := range files {
		p = filepath.Join(dir, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(t.TempDir(), "x.deb")
	if out, err := exec.Command("dpkg-deb", "-Znone", "--root-owner-group", "--build", dir, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// world returns options of images of small programs, with a mirror that has their package.
func world(t *testing.T) Options {
	t.Helper()
	o := Options{
		Archs:    []string{"amd64", "arm64"},
		Version:  "v1.2.3",
		Revision: "0123456789abcdef0123456789abcdef01234567",
		Created:  time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
		Programs: t.TempDir(),
		Cache:    t.TempDir(),
		Progress: func(string) {},
	}
	for _, arch := range o.Archs {
		kip := "small"
		if arch == runtime.GOARCH {
			kip = "inside"
		}
		for name, program := range map[string]string{"kip": kip, "kipctl": "small"} {
			write(t, filepath.Join(o.Programs, "linux-"+arch, name), compile(t, program, arch))
		}
	}
	o.setAuthorities(t, map[string]string{"b.crt": "the second\n", "a.crt": "the first\n"})
	return o
}

// setAuthorities gives the mirror a package with these.
func (o *Options) setAuthorities(t *testing.T, authorities map[string]string) {
	t.Helper()
	deb := archive(t, authorities)
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(deb) }))
	t.Cleanup(mirror.Close)
	o.Mirrors = debian.Mirrors{debian.Release: mirror.URL}
	o.Lock = nil
	sum := sha256.Sum256(deb)
	for _, arch := range []string{"amd64", "arm64"} {
		o.Lock = append(o.Lock, debian.Package{
			Arch:    arch,
			Name:    "ca-certificates",
			Version: "1",
			Bytes:   int64(len(deb)),
			SHA256:  hex.EncodeToString(sum[:]),
			Archive: debian.Release,
			Path:    "pool/x",
		})
	}
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o755)); err != nil {
		t.Fatal(err)
	}
}

func build(t *testing.T, o Options) *Set {
	t.Helper()
	s, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// imageOf returns the image of an index for an architecture.
func imageOf(t *testing.T, index v1.ImageIndex, arch string) v1.Image {
	t.Helper()
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range m.Manifests {
		if d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == arch {
			img, err := index.Image(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			return img
		}
	}
	t.Fatalf("the index has no image for %s: %+v", arch, m.Manifests)
	return nil
}

// entry is a file of an image as its layers have it.
type entry struct {
	header  tar.Header
	content []byte
}

// entries are those of an image, by their paths.
func entries(t *testing.T, img v1.Image) map[string]entry {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	all := map[string]entry{}
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		var content bytes.Buffer
		if _, err := io.Copy(&content, files); err != nil {
			t.Fatal(err)
		}
		all[h.Name] = entry{*h, content.Bytes()}
	}
}
