//go:build e2e

package boot

import (
	"archive/tar"
	"cmp"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/elotl/kip/test/tier"
)

// TestARM64ProgramsOfTheImageRun runs what make images has put into Kip's image for arm64, under the emulation of a process.
func TestARM64ProgramsOfTheImageRun(t *testing.T) {
	tier.All(t)
	emulator, err := exec.LookPath("qemu-aarch64")
	if err != nil {
		t.Fatalf("%v: hack/prerequisites --emulate arm64 installs it", err)
	}
	bin, err := filepath.Abs(cmp.Or(os.Getenv("KIP_BIN"), "../../bin"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(bin, "images", "kip")
	whole, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatalf("make images builds it: %v", err)
	}
	indexes, err := partial.FindIndexes(whole, match.MediaTypes(string(types.OCIImageIndex)))
	if err != nil || len(indexes) != 1 {
		t.Fatalf("%s has %d indexes (%v), want one", dir, len(indexes), err)
	}
	found, err := partial.FindImages(indexes[0], match.Platforms(v1.Platform{OS: "linux", Architecture: "arm64"}))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 {
		t.Fatalf("%s has %d images for arm64, want one", dir, len(found))
	}
	root := t.TempDir()
	unpack(t, found[0], root)
	for program, want := range map[string]string{"kip": "kubelet v1.", "kipctl": "kipctl"} {
		out, err := exec.Command(emulator, filepath.Join(root, program), "version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s version: %v: %q, want %q", program, err, out, want)
		}
	}
}

// unpack writes the programs of an image below a folder.
func unpack(t *testing.T, img v1.Image, dir string) {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg || h.Mode != 0o755 {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, filepath.Base(h.Name)), os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(f, files)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
