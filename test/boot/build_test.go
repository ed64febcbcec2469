//go:build e2e

package boot

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
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
		"-cache="+filepath.Join(filepath.Dir(bin), ".kip", "debs"), "-formats=raw,tar.gz,vhd", "-gone=newest")
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
	// Somebody else's program reads what is for Azure, whose disks are of whole MiB.
	vhd, err := second.Output("vhd")
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Size   int64  `json:"virtual-size"`
		Format string `json:"format"`
	}
	// By its size as Azure has it, and not as by a BIOS' cylinders.
	asAzure := "driver=vpc,force_size_calc=current_size,file.filename=" + filepath.Join(dir, vhd.Name)
	said, err := exec.CommandContext(t.Context(), "qemu-img", "info", "--output=json", "--image-opts", asAzure).Output()
	if err == nil {
		err = json.Unmarshal(said, &info)
	}
	if err != nil || info.Format != "vpc" || info.Size%(1<<20) != 0 || info.Size != vhd.Bytes-512 {
		t.Errorf("qemu-img says of %+v: %+v, %v", vhd, info, err)
	}
	disk, err := exec.CommandContext(t.Context(), "qemu-img", "compare", "--image-opts", asAzure,
		"driver=raw,file.filename="+filepath.Join(dir, one.Name)).CombinedOutput()
	if err != nil {
		t.Errorf("the disk of the VHD is another: %v: %s", err, disk)
	}
	var bill struct {
		Packages []struct{ Name, VersionInfo string }
	}
	text, err := os.ReadFile(stem + ".spdx.json")
	if err == nil {
		err = json.Unmarshal(text, &bill)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"github.com/opencontainers/runc", "libseccomp", "k8s.io/kubernetes", "github.com/containerd/containerd/v2",
		"github.com/containernetworking/plugins", "github.com/elotl/kip", "nftables", "busybox-static"} {
		n := 0
		for _, p := range bill.Packages {
			if p.Name == name && (p.VersionInfo != "" && p.VersionInfo != "(devel)" || name == "libseccomp") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the list of software has %s %d times", name, n)
		}
	}
	for _, name := range []string{"containerd", "runc", "cni-plugins"} {
		if v := second.Components[name]; !strings.HasPrefix(v, "v") {
			t.Errorf("the manifest has %q as the version of %s", v, name)
		}
	}
	if packed, err := second.Output("tar.gz"); err != nil || packed.Bytes > mostCompressed {
		t.Errorf("compressed it has %d bytes, and is to have %.0f at most (%v)", packed.Bytes, mostCompressed, err)
	} else {
		t.Logf("compressed it has %d MB", packed.Bytes/1e6)
	}
}
