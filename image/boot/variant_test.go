package boot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	erofs "github.com/erofs/go-erofs"

	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/image/nvidia"
	"github.com/elotl/kip/internal/agent/gpt"
)

const magic = "6.12-test SMP mod_unload "

// driverModules are as the build makes them, for a kernel and of a version.
func driverModules(magic, version string) map[string][]byte {
	info := "vermagic=" + magic + "\x00version=" + version + "\x00"
	return map[string][]byte{
		"nvidia.ko":     []byte(moduleFile(info + "depends=libcrc32c\x00alias=pci:v000010DEd*sv*sd*bc03sc02i00*")),
		"nvidia-uvm.ko": []byte(moduleFile(info + "depends=nvidia")),
	}
}

// withDriver are options of an image with a driver whose packages have these files beside those that they need to have.
func withDriver(t *testing.T, more map[string]string) Options {
	t.Helper()
	kernel, tools := contents(t)
	kernel["usr/lib/modules/"+release+"/kernel/drivers/overlay.ko"] = moduleFile("vermagic=" + magic)
	tools[libs+"libm.so.6"] = string(program{machine: elf.EM_X86_64}.bytes())
	o := world(t, kernel, tools)
	smi := program{machine: elf.EM_X86_64, loader: "/lib64/ld.so", needs: []string{"libm.so.6"}}
	files := map[string]string{
		"usr/lib/nvidia/current/nvidia-smi":           string(smi.bytes()),
		"usr/lib/firmware/nvidia/550.1/gsp_tu10x.bin": "turing",
		"usr/lib/firmware/nvidia/550.1/gsp_ga10x.bin": "ampere",
	}
	for _, name := range []string{"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"} {
		files[libs+"nvidia/current/"+name+".so.550.1"] = string(program{machine: elf.EM_X86_64, needs: []string{"libm.so.6"}}.bytes())
		files[libs+"nvidia/current/"+name+".so.1"] = "-> " + name + ".so.550.1"
	}
	maps.Copy(files, more)
	b := packageOf(t, "libcuda1", files)
	sum := sha256.Sum256(b)
	p := debian.Package{
		Arch: "amd64", Name: "libcuda1", Version: "550.1-2", Bytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:]),
		Archive: debian.Release, Path: "pool/libcuda1",
	}
	// As if it had been fetched: the mirror has none.
	if err := os.WriteFile(filepath.Join(o.Cache, p.SHA256+".deb"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Variant, o.VariantLock, o.Formats = nvidia.Variant, debian.Lock{p}, []string{"raw"}
	o.modules = func(context.Context) (map[string][]byte, error) { return driverModules(magic, "550.1"), nil }
	return o
}

func TestTheVariantHasTheDriver(t *testing.T) {
	o := withDriver(t, nil)
	m, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if m.Variant != "nvidia" || !slices.Equal(m.GPUs, nvidia.GPUs) || m.Packages["libcuda1"] != "550.1-2" ||
		!slices.Equal(m.Modules["GPUs of NVIDIA"], nvidia.Modules) {
		t.Errorf("its manifest says %q, %q, %v, %v", m.Variant, m.GPUs, m.Packages, m.Modules)
	}
	if out, err := m.Output("raw"); err != nil || out.Name != "kip-cell-amd64-nvidia.raw" {
		t.Errorf("its disk is %+v (%v)", out, err)
	}
	if again, err := ReadVariant(o.Out, "amd64", "nvidia"); err != nil || again.Root != m.Root {
		t.Errorf("its manifest is read as %+v (%v)", again, err)
	}
	if other, err := ReadManifest(o.Out, "amd64"); err == nil {
		t.Errorf("it is taken for the plain image: %+v", other)
	}
	raw := read(t, o, "-nvidia.raw")
	table, err := gpt.Read(bytes.NewReader(raw), uint64(len(raw)/gpt.Sector))
	if err != nil {
		t.Fatal(err)
	}
	root := table.Partitions[1]
	fsys, err := erofs.Open(bytes.NewReader(raw[root.First*gpt.Sector : (root.Last+1)*gpt.Sector]))
	if err != nil {
		t.Fatal(err)
	}
	dir := "usr/lib/modules/" + release + "/"
	for p, want := range map[string]string{
		dir + "updates/nvidia.ko":                     string(driverModules(magic, "550.1")["nvidia.ko"]),
		"usr/lib/firmware/nvidia/550.1/gsp_ga10x.bin": "ampere",
		libs + "libcuda.so.550.1":                     string(program{machine: elf.EM_X86_64, needs: []string{"libm.so.6"}}.bytes()),
		libs + "libm.so.6":                            string(program{machine: elf.EM_X86_64}.bytes()), // which only the driver needs
	} {
		if got, err := fs.ReadFile(fsys, p); err != nil || string(got) != want {
			t.Errorf("/%s is %.40q (%v), want %.40q", p, got, err, want)
		}
	}
	if to, err := fs.ReadLink(fsys, libs+"libcuda.so.1"); err != nil || to != "libcuda.so.550.1" {
		t.Errorf("libcuda.so.1 leads to %q (%v)", to, err)
	}
	if info, err := fs.Stat(fsys, "usr/bin/nvidia-smi"); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("nvidia-smi: %v (%v)", info, err)
	}
	deps, depsErr := fs.ReadFile(fsys, dir+"modules.dep")
	aliases, aliasErr := fs.ReadFile(fsys, dir+"modules.alias")
	if depsErr != nil || aliasErr != nil ||
		!strings.Contains(string(deps), "updates/nvidia-uvm.ko: updates/nvidia.ko kernel/lib/libcrc32c.ko\n") ||
		!strings.Contains(string(aliases), "alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia\n") {
		t.Errorf("the lists of modules are (%v, %v)\n%s\n%s", depsErr, aliasErr, deps, aliases)
	}
}

func TestABuildWithAWrongDriverFails(t *testing.T) {
	for name, tc := range map[string]struct {
		more    map[string]string
		modules map[string][]byte
		want    string
	}{
		"a library of an older version": {
			more: map[string]string{libs + "nvidia/current/libcuda.so.1": "-> libcuda.so.535", libs + "nvidia/current/libcuda.so.535": "x"},
			want: "libcuda.so.1 leads to version 535",
		},
		"modules of another kernel": {
			modules: driverModules("6.12-other SMP mod_unload ", "550.1"),
			want:    `the module nvidia is for the kernel "6.12-other SMP mod_unload", and the image has "6.12-test SMP mod_unload"`,
		},
		"modules of another version": {
			modules: driverModules(magic, "535"), want: "the module nvidia_uvm has version 535, and the driver's libraries are of 550.1",
		},
		"a module too few": {
			modules: map[string][]byte{"nvidia.ko": driverModules(magic, "550.1")["nvidia.ko"]},
			want:    "GPUs of NVIDIA: the kernel 6.12-test has no module nvidia_uvm",
		},
	} {
		o := withDriver(t, tc.more)
		if tc.modules != nil {
			o.modules = func(context.Context) (map[string][]byte, error) { return tc.modules, nil }
		}
		if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	o := withDriver(t, nil)
	for _, tc := range [][3]string{
		{"nvidia", "arm64", "there is one for amd64 only"}, {"amd", "amd64", `variant "amd": want nvidia, or none`},
	} {
		o.Variant, o.Arch = tc[0], tc[1]
		if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc[2]) {
			t.Errorf("variant %s for %s: %v, want %q", tc[0], tc[1], err, tc[2])
		}
	}
}
