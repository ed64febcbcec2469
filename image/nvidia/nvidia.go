package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/elotl/kip/image/debian"
)

// Variant is the name of images that have the driver.
const Variant = "nvidia"

// Arch is the architecture of the images that there are.
const Arch = "amd64"

// Driver are Debian's packages of which files are in the image, as debian.Resolve takes them.
var Driver = []string{
	"non-free-firmware/firmware-nvidia-gsp", "non-free/libcuda1", "non-free/libnvidia-ml1", "non-free/libnvidia-ptxjitcompiler1",
	"non-free/libnvidia-nvvm4", "non-free/libnvcuvid1", "non-free/libnvidia-encode1", "non-free/nvidia-opencl-icd", "non-free/nvidia-smi",
}

// Packages are all that a lock of the variant has: those of Driver, and what builds the modules.
func Packages() []string { return slices.Concat(Driver, compiler) }

// InImage reports whether files of a package of the lock are in the image.
func InImage(p debian.Package) bool {
	return slices.ContainsFunc(Driver, func(name string) bool { return path.Base(name) == p.Name })
}

// GPUs are the models that the driver of this version drives without a service beside it, in NVIDIA's and EC2's
// words. The open modules drive Turing and what came after it (NVIDIA/open-gpu-kernel-modules, README, "Compatible
// GPUs"), and version 550 nothing from Blackwell on. Machines with A100s, H100s or H200s are left out. Nearly all
// have an NVSwitch, with which no program gets a GPU before the fabric manager runs (NVIDIA, "Fabric Manager for
// NVIDIA NVSwitch Systems User Guide"), and Debian has no package of that.
var GPUs = []string{"A10G", "L4", "L40S", "T4"}

// Modules are the kernel modules, by their names in modules.dep. The cloud kernel has no DRM, so that nvidia-drm cannot
// be built, and nothing of a cell uses it.
var Modules = []string{"nvidia", "nvidia_uvm"}

// libraryDir is where Debian's packages, and the image, have libraries.
const libraryDir = "usr/lib/x86_64-linux-gnu"

const (
	firmwareDir = "usr/lib/firmware/nvidia"
	smi         = "usr/bin/nvidia-smi"
)

// Debian's packages have the files of a driver in these, and make links to them when they are installed.
const (
	currentLibraries = libraryDir + "/nvidia/current"
	currentPrograms  = "usr/lib/nvidia/current"
)

// library is the name of a shared library's file, or of a link to it.
var library = regexp.MustCompile(`^lib[a-zA-Z0-9_-]+\.so(\.[0-9.]+)?$`)

// required are what no program can use a GPU without: the libraries by which it is found and computes, the program by
// which people look at it, and the firmware of Turing's GPUs and of later ones.
func required(version string) []string {
	return []string{
		libraryDir + "/libcuda.so.1", libraryDir + "/libnvidia-ml.so.1", libraryDir + "/libnvidia-ptxjitcompiler.so.1", smi,
		firmwareDir + "/" + version + "/gsp_tu10x.bin", firmwareDir + "/" + version + "/gsp_ga10x.bin",
	}
}

// Files returns the driver's version and what of its packages an image has, by the paths in the image. It returns an
// error that names each required file that is missing, or is of another version.
func Files(packages debian.Files) (version string, files debian.Files, err error) {
	files = debian.Files{}
	versions := map[string]bool{}
	for p, f := range packages {
		switch dir, base := path.Split(p); strings.TrimSuffix(dir, "/") {
		case currentLibraries, libraryDir:
			if library.MatchString(base) {
				f.Link = path.Base(f.Link) // all are in one folder
				files[path.Join(libraryDir, base)] = f
			}
		case currentPrograms:
			if base == path.Base(smi) {
				files[smi] = f
			}
		default:
			if rest, is := strings.CutPrefix(p, firmwareDir+"/"); is {
				of, _, _ := strings.Cut(rest, "/")
				files[p], versions[of] = f, true
			}
		}
	}
	if len(versions) != 1 {
		return "", nil, fmt.Errorf("the driver's packages have firmware of the versions %q in %s: want one",
			slices.Sorted(maps.Keys(versions)), firmwareDir)
	}
	for of := range versions {
		version = of
	}
	return version, files, check(version, files)
}

func check(version string, files debian.Files) error {
	var errs []error
	for _, name := range required(version) {
		_, at, err := files.Open(name)
		_, of, isLibrary := strings.Cut(path.Base(at), ".so.")
		switch {
		case errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("the driver's packages lack /%s", name))
		case err != nil:
			errs = append(errs, err)
		case isLibrary && of != version:
			errs = append(errs, fmt.Errorf("/%s leads to version %s, and the firmware is of %s", name, of, version))
		}
	}
	return errors.Join(errs...)
}
