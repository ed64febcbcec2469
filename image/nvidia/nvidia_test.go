package nvidia

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/image/debian"
)

// packages are files as Debian's packages of a driver have them.
func packages() debian.Files {
	files := debian.Files{
		"usr/lib/firmware/nvidia/550.1/gsp_tu10x.bin": {Content: []byte("turing")},
		"usr/lib/firmware/nvidia/550.1/gsp_ga10x.bin": {Content: []byte("ampere")},
		"usr/lib/nvidia/current/nvidia-smi":           {Content: []byte("smi")},
		"usr/lib/nvidia/current/nvidia-smi.1.gz":      {Content: []byte("a page")},
		"usr/share/doc/x":                             {Content: []byte("a text")},
	}
	for _, name := range []string{"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"} {
		files[currentLibraries+"/"+name+".so.550.1"] = debian.File{Content: []byte(name)}
		files[currentLibraries+"/"+name+".so.1"] = debian.File{Mode: fs.ModeSymlink, Link: name + ".so.550.1"}
	}
	return files
}

func TestTheDriversFilesAreWhereTheAgentLooksForThem(t *testing.T) {
	version, files, err := Files(packages())
	if err != nil || version != "550.1" {
		t.Fatalf("version %q: %v", version, err)
	}
	want := []string{
		"usr/bin/nvidia-smi", "usr/lib/firmware/nvidia/550.1/gsp_ga10x.bin", "usr/lib/firmware/nvidia/550.1/gsp_tu10x.bin",
		libraryDir + "/libcuda.so.1", libraryDir + "/libcuda.so.550.1", libraryDir + "/libnvidia-ml.so.1", libraryDir + "/libnvidia-ml.so.550.1",
		libraryDir + "/libnvidia-ptxjitcompiler.so.1", libraryDir + "/libnvidia-ptxjitcompiler.so.550.1",
	}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
		t.Errorf("the image has %q, want %q", got, want)
	}
	if f, _, err := files.Open(libraryDir + "/libcuda.so.1"); err != nil || string(f.Content) != "libcuda" {
		t.Errorf("libcuda.so.1 is %q (%v)", f.Content, err)
	}
}

func TestEachMissingFileOfTheDriverIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(debian.Files)
		want   []string
	}{
		"a library and its firmware": {
			change: func(f debian.Files) {
				delete(f, currentLibraries+"/libcuda.so.1")
				delete(f, "usr/lib/firmware/nvidia/550.1/gsp_ga10x.bin")
			},
			want: []string{"the driver's packages lack /usr/lib/x86_64-linux-gnu/libcuda.so.1", "lack /usr/lib/firmware/nvidia/550.1/gsp_ga10x.bin"},
		},
		"what a link leads to": {
			change: func(f debian.Files) { delete(f, currentLibraries+"/libnvidia-ml.so.550.1") },
			want:   []string{"lack /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"},
		},
		"nvidia-smi": {
			change: func(f debian.Files) { delete(f, currentPrograms+"/nvidia-smi") },
			want:   []string{"lack /usr/bin/nvidia-smi"},
		},
		"a library of another version": {
			change: func(f debian.Files) {
				f[currentLibraries+"/libcuda.so.1"] = debian.File{Mode: fs.ModeSymlink, Link: "libcuda.so.535.2"}
				f[currentLibraries+"/libcuda.so.535.2"] = debian.File{}
			},
			want: []string{"libcuda.so.1 leads to version 535.2, and the firmware is of 550.1"},
		},
		"firmware of two versions": {
			change: func(f debian.Files) { f["usr/lib/firmware/nvidia/535.2/gsp_tu10x.bin"] = debian.File{} },
			want:   []string{`firmware of the versions ["535.2" "550.1"]`},
		},
		"all firmware": {
			change: func(f debian.Files) {
				maps.DeleteFunc(f, func(p string, _ debian.File) bool { return strings.Contains(p, "firmware") })
			},
			want: []string{"firmware of the versions []"},
		},
	} {
		files := packages()
		tc.change(files)
		_, _, err := Files(files)
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("without %s: %v, want %q", name, err, want)
			}
		}
	}
}

// The build fails with headers of another kernel than the image's, so both locks are written together.
func TestBothLocksAreOfOneKernel(t *testing.T) {
	lock, err := debian.PinnedNVIDIA()
	if err != nil {
		t.Fatal(err)
	}
	image, err := debian.Pinned()
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := image.Find(Arch, "linux-image-cloud-"+Arch)
	if err != nil {
		t.Fatal(err)
	}
	n := slices.IndexFunc(lock, func(p debian.Package) bool { return strings.HasPrefix(p.Name, "linux-kbuild-") })
	if n < 0 || lock[n].Version != kernel.Version {
		t.Errorf("the image's kernel is %s, and the lock of the variant has no headers of it: run make image-lock", kernel.Version)
	}
}
