//go:build e2e

package boot

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	made "github.com/elotl/kip/image/boot"
)

// mostCompressed bounds the smallest form of the image, in bytes.
const mostCompressed = 200e6

// TestTheImageIsMadeAgainOfTheSameBytes builds what make image built once more, of Debian's packages
// and Kip's programs, into another folder.
func TestTheImageIsMadeAgainOfTheSameBytes(t *testing.T) {
	stem := image(t)
	bin, err := filepath.Abs(filepath.Dir(filepath.Dir(stem)))
	if err != nil {
		t.Fatal(err)
	}
	first, err := made.ReadManifest(filepath.Dir(stem), runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), filepath.Join(bin, "kip-image"), "build", "-programs="+bin, "-out="+dir,
		"-cache="+filepath.Join(filepath.Dir(bin), ".kip", "debs"), "-formats=raw,tar.gz", "-gone=newest")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	second, err := made.ReadManifest(dir, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	one, err := first.Output("raw")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := second.Output("raw"); err != nil || other != one {
		t.Errorf("the disk is %+v, and once more %+v (%v)", one, other, err)
	}
	for _, suffix := range []string{".efi", ".spdx.json"} {
		one, err := os.ReadFile(stem + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := os.ReadFile(filepath.Join(dir, filepath.Base(stem)+suffix)); err != nil || !bytes.Equal(one, other) {
			t.Errorf("its %s is another one once more (%v)", suffix, err)
		}
	}
	if packed, err := second.Output("tar.gz"); err != nil || packed.Bytes > mostCompressed {
		t.Errorf("compressed it has %d bytes, and is to have %.0f at most (%v)", packed.Bytes, mostCompressed, err)
	} else {
		t.Logf("compressed it has %d MB", packed.Bytes/1e6)
	}
}
