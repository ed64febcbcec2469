//go:build e2e

package boot

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	made "github.com/elotl/kip/image/boot"
	"github.com/elotl/kip/test/tier"
)

// mostCompressed bounds the smallest form of the image, in bytes.
const mostCompressed = 200e6

// nobody is the user, and the group, who may do nothing that not everybody may.
const nobody = 65534

// copied copies the files of these patterns into a new folder, since nobody may look into that of another.
func copied(t *testing.T, to, from string, patterns ...string) {
	t.Helper()
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("there is no %s in %s (%v; make image makes it)", pattern, from, err)
		}
		if out, err := exec.CommandContext(t.Context(), "cp", append(files, to)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// asNobody has a program run as nobody in a folder that is nobody's, with all that lies there. Who runs the
// tests without being root has no privileges as it is.
func asNobody(t *testing.T, dir string, cmd *exec.Cmd) {
	t.Helper()
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
	if os.Geteuid() != 0 {
		return
	}
	// The folder of a test's folders is its user's alone.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// TestTheImageIsMadeAgainOfTheSameBytes builds what make image built once more, of copies of Debian's
// packages and Kip's programs, into another folder, without any privileges.
func TestTheImageIsMadeAgainOfTheSameBytes(t *testing.T) {
	tier.All(t)
	stem := image(t)
	bin, err := filepath.Abs(filepath.Dir(filepath.Dir(stem)))
	if err != nil {
		t.Fatal(err)
	}
	first, err := made.ReadManifest(filepath.Dir(stem), runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	all := t.TempDir()
	programs, packages, dir := filepath.Join(all, "bin"), filepath.Join(all, "debs"), filepath.Join(all, "image")
	copied(t, programs, bin, "kip-image", "itzo", "itzo-containerd", "itzo-lite", "itzo-boot", "runc", "portmap", "pause")
	copied(t, packages, filepath.Join(filepath.Dir(bin), ".kip", "debs"), "*.deb")
	build := exec.CommandContext(t.Context(), filepath.Join(programs, "kip-image"), "build", "-programs="+programs, "-out="+dir,
		"-cache="+packages, "-formats=raw,tar.gz,vhd", "-gone=newest")
	asNobody(t, all, build)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if info, err := os.Stat(dir); err != nil || os.Geteuid() == 0 && info.Sys().(*syscall.Stat_t).Uid != nobody {
		t.Errorf("it was not nobody who built it: %+v, %v", info, err)
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
